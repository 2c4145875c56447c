// The page of the service. It needs nothing but the service's own addresses.

const $ = (id) => document.getElementById(id);
let token = "";
const refused = new Set(); // functions: what was refused for want of a token, to be done again with one

// --- Asking ---

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function explain(error, again) {
  fail(error.message);
  if (error.status === 401) refused.add(again);
}

function problem(status, text) {
  if (status === 401) {
    $("access").hidden = false;
    $("token").focus();
  }
  const saying = (message) => Object.assign(new Error(message), { status });
  try {
    return saying(JSON.parse(text).error.message);
  } catch {
    return saying(status ? `The service answered with status ${status}.` : "The service cannot be reached.");
  }
}

const authorized = () => (token ? { Authorization: `Bearer ${token}` } : {});

// XMLHttpRequest, since fetch does not tell how much of an upload has been sent. Where the answer is a stream of events,
// onEvent gets each of them as it comes.
function post(path, fields, onUpload, onEvent = null) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(authorized())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onUpload(event.loaded / event.total);
    let numRead = 0;
    const readEvents = () => {
      const end = request.responseText.lastIndexOf("\n\n") + 2;
      for (const event of eventsIn(request.responseText.slice(numRead, end))) onEvent(...event);
      numRead = Math.max(end, numRead);
    };
    if (onEvent) request.onprogress = () => request.status === 200 && readEvents();
    request.onload = () => {
      if (request.status >= 300) return reject(problem(request.status, request.responseText));
      resolve(onEvent ? readEvents() : JSON.parse(request.responseText));
    };
    request.onerror = () => reject(problem(0, ""));
    request.send(form);
  });
}

async function get(path, options = {}) {
  const answer = await fetch(path, { headers: authorized(), ...options }).catch(() => {
    throw problem(0, "");
  });
  if (!answer.ok) throw problem(answer.status, await answer.text());
  return answer;
}

// Server-sent events: name and data.
const eventsIn = (text) =>
  text.split("\n\n").flatMap((part) => {
    const name = /^event: (.*)$/m.exec(part);
    const data = /^data: (.*)$/m.exec(part);
    return name && data ? [[name[1], JSON.parse(data[1])]] : [];
  });

// They come with a token, which EventSource cannot send.
async function* events(path) {
  const reader = (await get(path)).body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const end = waiting.lastIndexOf("\n\n") + 2;
    yield* eventsIn(waiting.slice(0, end));
    waiting = waiting.slice(end);
  }
}

// --- Showing ---

const clock = (seconds) =>
  `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

function element(tag, text = "", attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.textContent = text;
  return made;
}

function progress(id, fraction, text) {
  const shown = $(id);
  shown.hidden = fraction === null;
  const bar = shown.querySelector("progress");
  if (fraction === undefined) bar.removeAttribute("value");
  else if (fraction !== null) bar.value = fraction;
  if (fraction !== null) shown.querySelector("[role=status]").textContent = text;
}

const onUpload = (id, then) => (fraction) =>
  fraction < 1
    ? progress(id, fraction, `Sending, ${Math.round(fraction * 100)} %`)
    : progress(id, undefined, then);

function play(video, file) {
  if (video.src) URL.revokeObjectURL(video.src);
  video.hidden = false;
  video.src = URL.createObjectURL(file);
}

function jump(video, seconds) {
  if (video.hidden) return;
  video.pause();
  video.currentTime = seconds;
  video.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

const choosers = {};

function chooser(prefix, use) {
  const input = $(`${prefix}-file`);
  const place = input.closest(".drop");
  const choose = (file) => {
    if (!file) return;
    place.classList.add("small");
    place.querySelector("strong").textContent = `${file.name} – choose another`;
    fail("");
    use(file);
    input.value = ""; // or the browser would not tell of the same file chosen again
  };
  choosers[prefix] = choose;
  input.addEventListener("change", () => choose(input.files[0]));
  for (const type of ["dragenter", "dragover"])
    place.addEventListener(type, (event) => {
      event.preventDefault();
      place.classList.add("over");
    });
  for (const type of ["dragleave", "drop"]) place.addEventListener(type, () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    choose(event.dataTransfer.files[0]);
  });
}

// --- Confidence ---

let doubtfulBelow = null; // null where the model's captions have no confidence

// Before anything is sent, so that a missing token is found out by a small request: the answer to a large one that is
// refused may be lost, and a WebSocket is not told why.
async function learnLimit() {
  ({ doubtful_below: doubtfulBelow } = await (await get("v1/model")).json());
  for (const choice of document.querySelectorAll(".sure-only")) choice.hidden = doubtfulBelow === null;
}

const isDoubtful = ({ confidence }) => confidence !== null && confidence < doubtfulBelow;

// Rounded down: what is left out because it is below 50 % must not look like 50 %.
const percent = (confidence) => (confidence === null ? "" : `${Math.floor(100 * confidence + 1e-9)} %`);

// What to ask of the service for a film or a stream.
const sureOnly = (choice) =>
  doubtfulBelow !== null && $(choice).checked ? { min_confidence: doubtfulBelow } : {};

// --- Samples ---

// A sample is fetched, and then sent like a file of the user's own.
async function offerSamples() {
  const names = await (await get("v1/samples")).json();
  for (const place of document.querySelectorAll(".samples")) {
    place.hidden = !names.length;
    const prefix = place.closest("section").id;
    place.querySelector("span").replaceChildren(
      ...names.map((name) => {
        const button = element("button", name.replace(/\.[^.]*$/, ""), { type: "button" });
        const take = async () => {
          try {
            const content = await (await get(`v1/samples/${encodeURIComponent(name)}`)).blob();
            choosers[prefix](new File([content], name, { type: content.type }));
          } catch (error) {
            explain(error, take);
          }
        };
        button.addEventListener("click", take);
        return button;
      }),
    );
  }
}

// --- Clip ---

const STRIP = 30; // frames that the service looks at, by default
let clip = null;
let newest = 0; // of several requests, only the last one's answer is shown

const picture = (data, attributes = {}) =>
  element("img", "", { src: `data:${data.media_type};base64,${data.data}`, alt: "", ...attributes });

async function describe() {
  const mine = ++newest;
  const rate = 2 ** Number($("rate").value);
  const looking = new Looking();
  $("clip-shown").hidden = false;
  progress("clip-progress", 0, "Sending");
  const failed = (error) => {
    explain(error, describe);
    $("clip-shown").hidden = $("clip-result").hidden; // nothing to show, unless it is the dial that failed
  };
  const on = {
    glance: (data) => looking.glance(data),
    pick: (data) => looking.pick(data),
    caption: (data) => showCaption(data, looking),
    error: (data) => failed(data.error),
  };
  try {
    fail("");
    await learnLimit();
    await post(
      "v1/captions/events",
      { file: clip, candidates: 4, rate },
      (sent) => mine === newest && onUpload("clip-progress", "Looking")(sent),
      (name, data) => mine === newest && on[name]?.(data),
    );
  } catch (error) {
    if (mine === newest) failed(error);
  } finally {
    if (mine === newest) progress("clip-progress", null);
  }
}

// The strip of glances, the curve below it, and the picks, as the service tells them.
class Looking {
  constructor() {
    this.glances = [];
    this.picks = [];
    this.cells = Array.from({ length: STRIP }, () => element("i"));
  }

  glance(data) {
    if (!this.glances.length) {
      $("strip").replaceChildren(...this.cells);
      $("picks").replaceChildren();
    }
    const cell = this.cells[data.index] ?? $("strip").appendChild(element("i"));
    this.cells[data.index] = cell;
    cell.replaceChildren(picture(data));
    this.glances.push(data);
    this.draw();
  }

  pick(data) {
    this.picks.push(data);
    const cell = this.cells[data.index];
    cell.classList.add("picked");
    cell.replaceChildren(picture(data));
    const button = element("button", "", { type: "button" });
    button.append(picture(data), element("span", `at ${data.seconds.toFixed(1)} s`));
    button.addEventListener("click", () => jump($("clip-video"), data.seconds));
    const item = element("li");
    item.append(button);
    $("picks").append(item);
    this.draw();
  }

  finish() {
    this.cells.splice(this.glances.length).forEach((cell) => cell.remove());
    this.draw();
  }

  // One unit of width for each cell; a probability of 1 is at the top.
  draw() {
    const height = (probability) => (1 - (probability ?? 1)) * 10;
    const points = this.glances.map(({ index, probability }) => `${index + 0.5},${height(probability)}`);
    const last = this.glances.at(-1).index + 0.5;
    const shape = (tag, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      return made;
    };
    $("curve").setAttribute("viewBox", `0 -1 ${this.cells.length} 12`);
    $("curve").replaceChildren(
      ...this.picks.map(({ index }) => shape("rect", { x: index, y: -1, width: 1, height: 12 })),
      shape("polygon", { points: `0.5,10 ${points.join(" ")} ${last},10` }),
      shape("polyline", { points: points.join(" ") }),
    );
  }
}

function showCaption(caption, looking) {
  looking.finish();
  $("clip-result").hidden = false;
  $("sentence").textContent = caption.caption || "not sure";
  $("sentence").classList.toggle("doubtful", isDoubtful(caption));
  const sure = caption.confidence === null ? "" : `${isDoubtful(caption) ? "doubtful: " : ""}${percent(caption.confidence)} confident, `;
  $("sure").textContent = `${sure}from ${caption.num_picks} of ${caption.frames_seen} frames`;
  $("sure-bar").hidden = caption.confidence === null;
  $("sure-bar").firstChild.style.width = `${100 * caption.confidence}%`;
  $("others").replaceChildren(...caption.candidates.slice(1).map((one) => element("li", one.caption)));
}

chooser("clip", (file) => {
  clip = file;
  $("clip-result").hidden = true;
  $("clip-unplayable").hidden = true;
  $("sentence").textContent = "";
  $("sentence").classList.remove("doubtful");
  for (const id of ["strip", "curve", "picks"]) $(id).replaceChildren();
  play($("clip-video"), file);
  describe();
});
$("clip-video").addEventListener("error", () => {
  $("clip-video").hidden = true;
  $("clip-unplayable").hidden = false;
});
let turning = 0;
$("rate").addEventListener("input", () => {
  $("rate-value").textContent = `× ${+(2 ** Number($("rate").value)).toFixed(2)}`;
  clearTimeout(turning);
  turning = setTimeout(describe, 150); // a dial that is still being turned asks once
});

// --- Film ---

let film = null;
let job = null;
let running = null; // the job, until it ends
let newestFilm = 0;
let segments = [];

// keepalive: the request outlives the page.
const cancel = (id) => id && get(`v1/jobs/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});

async function tell() {
  const mine = ++newestFilm;
  cancel(running);
  job = running = null;
  segments = [];
  $("segments").replaceChildren();
  $("ribbon").replaceChildren();
  $("film-result").hidden = true;
  $("exports").hidden = true;
  $("search").value = "";
  progress("film-progress", 0, "Sending");
  try {
    fail("");
    await learnLimit();
    const fields = { file: film, wait: 0, ...sureOnly("film-sure") };
    const { id } = await post("v1/timelines", fields, (sent) => mine === newestFilm && onUpload("film-progress", "Watching")(sent));
    if (mine !== newestFilm) {
      cancel(id);
      return;
    }
    job = running = id;
    for await (const [name, data] of events(`v1/jobs/${id}/events`)) {
      if (mine !== newestFilm) return;
      if (name === "segment") addSegment(data);
      else if (name === "progress")
        progress(
          "film-progress",
          data.total_seconds ? data.seconds / data.total_seconds : undefined,
          `Watched ${clock(data.seconds)}` + (data.total_seconds ? ` of ${clock(data.total_seconds)}` : ""),
        );
      else {
        running = null;
        if (data.error) throw new Error(data.error);
        $("exports").hidden = false;
      }
    }
  } catch (error) {
    if (mine === newestFilm) explain(error, tell);
  } finally {
    if (mine === newestFilm) progress("film-progress", null);
  }
}

function addSegment(segment) {
  $("film-result").hidden = false;
  const button = element("button", "", { type: "button" });
  const sentence = segment.caption || "not sure";
  button.append(
    element("time", clock(segment.start)), " ",
    element("span", sentence), " ",
    element("small", percent(segment.confidence), { className: "percent", title: "How likely the sentence is good" }),
  );
  button.addEventListener("click", () => jump($("film-video"), segment.start));
  const item = element("li");
  item.append(button);
  $("segments").append(item);
  const part = element("i", "", { title: sentence });
  for (const shown of [item, part]) shown.classList.toggle("doubtful", isDoubtful(segment));
  part.style.flexGrow = segment.end - segment.start;
  part.addEventListener("click", () => jump($("film-video"), segment.start));
  $("ribbon").append(part);
  segments.push({ item, part, text: segment.caption.toLowerCase(), start: segment.start, end: segment.end });
  search();
}

function search() {
  const wanted = $("search").value.trim().toLowerCase();
  for (const { item, part, text } of segments) {
    const found = text.includes(wanted);
    item.hidden = !found;
    part.classList.toggle("found", found && wanted !== "");
  }
}

// The segment that is being played.
$("film-video").addEventListener("timeupdate", () => {
  const now = $("film-video").currentTime;
  for (const { item, part, start, end } of segments) {
    const isNow = start <= now && now < end;
    part.classList.toggle("now", isNow);
    item.firstChild.toggleAttribute("aria-current", isNow);
  }
});
$("film-video").addEventListener("error", () => ($("film-video").hidden = true));

chooser("film", (file) => {
  film = file;
  play($("film-video"), film);
  tell();
});
$("film-sure").addEventListener("change", () => film && tell());
$("search").addEventListener("input", search);
$("cancel").addEventListener("click", () => cancel(running));
window.addEventListener("pagehide", () => cancel(running));
$("exports").addEventListener("click", async (event) => {
  const format = event.target.value;
  if (!format) return;
  try {
    const content = await (await get(`v1/jobs/${job}/result?format=${format}`)).blob();
    const link = element("a", "", { href: URL.createObjectURL(content), download: `timeline.${format}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } catch (error) {
    fail(error.message);
  }
});

// --- Camera ---

let stop = null;
let last = null; // the update that is shown

async function watch() {
  fail("");
  let isWanted = true;
  let camera = null;
  let socket = null;
  let timer = null;
  const video = $("camera-video");
  const canvas = document.createElement("canvas");
  const release = () => camera?.getTracks().forEach((track) => track.stop());
  stop = () => {
    stop = null;
    isWanted = false;
    clearInterval(timer);
    socket?.close();
    release();
    video.hidden = true;
    $("camera-button").textContent = "Start the camera";
  };
  $("camera-button").textContent = "Stop the camera";
  try {
    camera = await navigator.mediaDevices.getUserMedia({ video: { width: 640 } });
    if (!isWanted) return release(); // stopped while the browser asked for permission
    video.srcObject = camera;
    video.hidden = false;
    await video.play();
  } catch {
    if (!isWanted) return;
    stop();
    fail("There is no camera, or this page may not use it.");
  }
  if (!isWanted) return;
  $("camera-log").replaceChildren();
  $("camera-sentence").replaceChildren();
  last = null;
  const connect = async () => {
    const error = await learnLimit().catch((error) => error);
    if (!isWanted) return;
    if (error?.status === 401) {
      stop();
      explain(error, watch);
    }
    if (error) return tryAgain();
    const address = new URL(`v1/stream?${new URLSearchParams(sureOnly("camera-sure"))}`, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const encoded = encodeURIComponent(token).replace(/[()]/g, (sign) => (sign === "(" ? "%28" : "%29"));
    socket = new WebSocket(address, token ? [`picknet.token.${encoded}`] : []);
    socket.onopen = () => fail("");
    socket.onmessage = (message) => heard(JSON.parse(message.data));
    socket.onclose = tryAgain;
  };
  const tryAgain = () => {
    if (!isWanted) return;
    fail("The connection was lost; trying again.");
    setTimeout(() => isWanted && connect(), 2000);
  };
  const send = () => {
    // A picture that has not been sent yet is not followed by another.
    if (socket?.readyState !== WebSocket.OPEN || socket.bufferedAmount > 0 || !video.videoWidth) return;
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((picture) => picture && socket.readyState === WebSocket.OPEN && socket.send(picture), "image/jpeg", 0.85);
  };
  connect();
  timer = setInterval(send, 1000);
}

function heard(update) {
  if (update.error) return fail(update.error.message);
  if (last && last.caption && last.caption !== update.caption) {
    const item = element("li");
    item.classList.toggle("doubtful", isDoubtful(last));
    item.append(element("span", last.caption));
    $("camera-log").prepend(item);
    while ($("camera-log").children.length > 20) $("camera-log").lastChild.remove();
  }
  last = update;
  const shown = $("camera-sentence");
  shown.classList.toggle("doubtful", isDoubtful(update));
  const sentence = update.caption || "not sure";
  // The same sentence is not written again: a screen reader would read it out with every pick.
  if (shown.firstChild?.textContent !== sentence)
    shown.replaceChildren(element("span", sentence), " ", element("small", "", { className: "percent" }));
  shown.lastChild.textContent = percent(update.confidence);
}

$("camera-button").addEventListener("click", () => (stop ? stop() : watch()));
$("camera-sure").addEventListener("change", () => {
  if (!stop) return;
  stop();
  watch();
});

// --- Tabs and access ---

const tabs = [...document.querySelectorAll("[role=tab]")];

function open(tab) {
  fail("");
  for (const one of tabs) {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
    $(one.getAttribute("aria-controls")).hidden = one !== tab;
  }
  if (tab.id === "tab-camera") return;
  stop?.();
  refused.delete(watch);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    next.focus();
    open(next);
  });
}

$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const entered = $("token").value.trim();
  if (!/^[!-~]+$/.test(entered)) {
    fail("A token has visible ASCII characters only: letters, digits and signs, no spaces.");
    return;
  }
  token = entered;
  $("access").hidden = true;
  fail("");
  begin();
});

// When the page is opened, and with each token that is entered.
async function begin() {
  try {
    await learnLimit();
    const again = [...refused];
    refused.clear();
    for (const action of again) action();
    await offerSamples();
  } catch (error) {
    if (error.status !== 401 || token) fail(error.message); // when the page is opened, the form says enough
  }
}

begin();
