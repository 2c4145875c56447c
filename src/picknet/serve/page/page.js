// The page of the service. It needs nothing but the service's own addresses.

const $ = (id) => document.getElementById(id);
let token = "";

// --- Asking ---

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

function problem(status, text) {
  if (status === 401) {
    $("access").hidden = false;
    $("token").focus();
  }
  try {
    return new Error(JSON.parse(text).error.message);
  } catch {
    return new Error(status ? `The service answered with status ${status}.` : "The service cannot be reached.");
  }
}

const authorized = () => (token ? { Authorization: `Bearer ${token}` } : {});

// XMLHttpRequest, since fetch does not tell how much of an upload has been sent.
function post(path, fields, onUpload) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(authorized())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onUpload(event.loaded / event.total);
    request.onload = () =>
      request.status < 300
        ? resolve(JSON.parse(request.responseText))
        : reject(problem(request.status, request.responseText));
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

// Server-sent events with a token, which EventSource cannot send.
async function* events(path) {
  const reader = (await get(path)).body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part);
      const data = /^data: (.*)$/m.exec(part);
      if (name && data) yield [name[1], JSON.parse(data[1])];
    }
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
  video.src = URL.createObjectURL(file);
}

function jump(video, seconds) {
  video.pause();
  video.currentTime = seconds;
  video.scrollIntoView({ block: "nearest", behavior: "smooth" });
}

function chooser(prefix, use) {
  const input = $(`${prefix}-file`);
  const place = input.closest(".drop");
  const choose = (file) => {
    if (!file) return;
    place.classList.add("small");
    place.querySelector("strong").textContent = `${file.name} – choose another`;
    fail("");
    use(file);
  };
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

// --- Clip ---

const STRIP = 30; // frames that the service looks at, by default
let clip = null;
let newest = 0; // of several requests, only the last one's answer is shown

async function describe() {
  const mine = ++newest;
  const rate = 2 ** Number($("rate").value);
  progress("clip-progress", 0, "Sending");
  try {
    const fields = { file: clip, candidates: 4, rate };
    const caption = await post("v1/captions", fields, (sent) => {
      if (mine === newest) onUpload("clip-progress", "Looking")(sent);
    });
    if (mine === newest) showCaption(caption);
    fail("");
  } catch (error) {
    if (mine === newest) fail(error.message);
  } finally {
    if (mine === newest) progress("clip-progress", null);
  }
}

function showCaption(caption) {
  $("clip-result").hidden = false;
  $("sentence").textContent = caption.caption;
  const sure = caption.confidence === null ? "" : `${Math.round(caption.confidence * 100)} % confident, `;
  $("sure").textContent = `${sure}from ${caption.num_picks} of ${caption.frames_seen} frames`;
  $("others").replaceChildren(...caption.candidates.slice(1).map((one) => element("li", one.caption)));
  const picked = new Set(caption.picks.map((pick) => Math.floor((pick.index * STRIP) / caption.frames_seen)));
  [...$("strip").children].forEach((cell, position) => cell.classList.toggle("picked", picked.has(position)));
  const pictures = caption.picks.map((pick) => {
    const button = element("button", "", { type: "button" });
    const canvas = element("canvas", "", { width: 288, height: 162 });
    canvas.setAttribute("aria-hidden", "true");
    button.append(canvas, element("span", `at ${pick.seconds.toFixed(1)} s`));
    button.addEventListener("click", () => jump($("clip-video"), pick.seconds));
    const item = element("li");
    item.append(button);
    return { item, canvas, seconds: () => pick.seconds };
  });
  $("picks").replaceChildren(...pictures.map(({ item }) => item));
  draw(pictures, () => pictures[0].item.isConnected);
}

// The frames that are looked at, as they go by while the service works.
function showStrip() {
  const cells = Array.from({ length: STRIP }, (_, position) => ({
    canvas: element("canvas", "", { width: 64, height: 64 }),
    seconds: (length) => ((position + 0.5) * length) / STRIP,
  }));
  $("strip").replaceChildren(...cells.map(({ canvas }) => canvas));
  draw(cells, () => cells[0].canvas.isConnected);
}

// Frames drawn by the browser from the file that it has. A file that it cannot play stays without pictures.
async function draw(pictures, isWanted) {
  if (!pictures.length) return;
  const video = element("video", "", { muted: true, preload: "auto", src: $("clip-video").src });
  const next = (type) =>
    new Promise((resolve, reject) => {
      video.addEventListener(type, resolve, { once: true });
      video.addEventListener("error", reject, { once: true });
    });
  try {
    await next("loadeddata");
    for (const { canvas, seconds } of pictures) {
      if (!isWanted()) return;
      video.currentTime = seconds(video.duration);
      await next("seeked");
      canvas.height = Math.round((canvas.width * video.videoHeight) / video.videoWidth);
      canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
    }
  } catch {
    // Its codec is not one of the browser's.
  }
}

chooser("clip", (file) => {
  clip = file;
  $("clip-result").hidden = true;
  $("clip-shown").hidden = false;
  $("sentence").textContent = "";
  play($("clip-video"), file);
  showStrip();
  describe();
});
$("rate").addEventListener("input", () => {
  $("rate-value").textContent = `× ${+(2 ** Number($("rate").value)).toFixed(2)}`;
});
$("rate").addEventListener("change", describe);

// --- Film ---

let job = null;
let segments = [];

async function tell(file) {
  segments = [];
  $("segments").replaceChildren();
  $("ribbon").replaceChildren();
  $("film-result").hidden = true;
  $("exports").hidden = true;
  $("search").value = "";
  play($("film-video"), file);
  progress("film-progress", 0, "Sending");
  try {
    job = (await post("v1/timelines", { file, wait: 0 }, onUpload("film-progress", "Watching"))).id;
    for await (const [name, data] of events(`v1/jobs/${job}/events`)) {
      if (name === "segment") addSegment(data);
      else if (name === "progress")
        progress(
          "film-progress",
          data.total_seconds ? data.seconds / data.total_seconds : undefined,
          `Watched ${clock(data.seconds)}` + (data.total_seconds ? ` of ${clock(data.total_seconds)}` : ""),
        );
      else if (data.error) throw new Error(data.error);
      else $("exports").hidden = false;
    }
  } catch (error) {
    fail(error.message);
  } finally {
    progress("film-progress", null);
  }
}

function addSegment(segment) {
  $("film-result").hidden = false;
  const button = element("button", "", { type: "button" });
  button.append(element("time", clock(segment.start)), element("span", segment.caption || "not sure"));
  button.addEventListener("click", () => jump($("film-video"), segment.start));
  const item = element("li");
  item.append(button);
  $("segments").append(item);
  const part = element("i");
  part.style.flexGrow = segment.end - segment.start;
  $("ribbon").append(part);
  segments.push({ item, part, text: segment.caption.toLowerCase() });
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

chooser("film", tell);
$("search").addEventListener("input", search);
$("cancel").addEventListener("click", () => job && get(`v1/jobs/${job}`, { method: "DELETE" }).catch(() => {}));
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

async function watch() {
  fail("");
  let camera;
  try {
    camera = await navigator.mediaDevices.getUserMedia({ video: { width: 640 } });
  } catch {
    fail("There is no camera, or this page may not use it.");
    return;
  }
  const video = $("camera-video");
  video.srcObject = camera;
  video.hidden = false;
  await video.play();
  $("camera-button").textContent = "Stop the camera";
  $("camera-log").replaceChildren();
  let isWanted = true;
  let socket = null;
  const canvas = document.createElement("canvas");
  const connect = () => {
    const address = new URL("v1/stream", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    socket = new WebSocket(address, token ? [`picknet.token.${token}`] : []);
    socket.onopen = () => fail("");
    socket.onmessage = (message) => heard(JSON.parse(message.data));
    socket.onclose = () => {
      if (!isWanted) return;
      fail("The connection was lost; trying again.");
      setTimeout(() => isWanted && connect(), 2000);
    };
  };
  const send = () => {
    // A picture that has not been sent yet is not followed by another.
    if (socket.readyState !== WebSocket.OPEN || socket.bufferedAmount > 0 || !video.videoWidth) return;
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((picture) => picture && socket.readyState === WebSocket.OPEN && socket.send(picture), "image/jpeg", 0.85);
  };
  connect();
  const timer = setInterval(send, 1000);
  stop = () => {
    isWanted = false;
    clearInterval(timer);
    socket.close();
    for (const track of camera.getTracks()) track.stop();
    video.hidden = true;
    $("camera-button").textContent = "Start the camera";
    stop = null;
  };
}

function heard(update) {
  if (update.error) return fail(update.error.message);
  const shown = $("camera-sentence");
  if (!update.changed || update.caption === shown.textContent) return;
  if (shown.textContent) $("camera-log").prepend(element("li", shown.textContent));
  while ($("camera-log").children.length > 20) $("camera-log").lastChild.remove();
  shown.textContent = update.caption;
}

$("camera-button").addEventListener("click", () => (stop ? stop() : watch()));

// --- Tabs and access ---

const tabs = [...document.querySelectorAll("[role=tab]")];

function open(tab) {
  fail("");
  for (const one of tabs) {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
    $(one.getAttribute("aria-controls")).hidden = one !== tab;
  }
  if (tab.id !== "tab-camera" && stop) stop();
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
  token = $("token").value;
  $("access").hidden = true;
  fail("");
  if (clip && !$("clip").hidden) describe();
});
