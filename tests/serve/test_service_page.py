"""The page in a real browser: upload, picks, dial, film, camera, token, errors, and what axe says of it."""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from services import TOKEN, Running, until
from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif(not importlib.util.find_spec("playwright"), reason="Playwright is not installed"),
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    options = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium's sandbox does not work for root
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


@pytest.fixture(scope="module")
def window(browser: Any, running: Running) -> Iterator[Any]:
    """A window for all tests: opening one takes longer than most of them."""
    context = browser.new_context(permissions=["camera"])
    yield context.new_page()
    context.close()


@pytest.fixture
def page(window: Any, running: Running) -> Iterator[Any]:
    """The page, with the token entered. No test may leave an error in the console."""
    problems: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            problems.append(message.text)

    window.on("console", note)
    window.on("pageerror", lambda error: problems.append(str(error)))
    window.set_default_timeout(20_000)
    window.goto(running.address)
    enter(window, TOKEN)
    yield window
    window.remove_listener("console", note)
    assert [text for text in problems if "WebSocket" not in text] == []


def enter(page: Any, token: str) -> None:
    """Once the page asks for it."""
    page.fill("#token", token)
    page.click("#access button")


def wait_for(page: Any, selector: str, text: str) -> None:
    page.locator(selector).filter(has_text=re.compile(text)).first.wait_for()


def test_a_clip_gets_its_sentence_and_a_click_on_a_pick_jumps_there(page: Any, clip: Path) -> None:
    page.set_input_files("#clip-file", clip)
    wait_for(page, "#sentence", "^7 22 37 52$")
    assert page.inner_text("#sure") == "50 % confident, from 4 of 4 frames"
    assert page.locator("#picks button").all_inner_texts() == ["at 0.3 s", "at 0.9 s", "at 1.5 s", "at 2.1 s"]
    assert page.locator("#strip i").count() == page.locator("#strip i.picked").count() == 4
    assert page.locator("#curve rect").count() == 4
    assert page.get_attribute("#curve polyline", "points") == "0.5,7.5 1.5,7.5 2.5,7.5 3.5,7.5"  # p = 0.25
    assert page.locator("#others li").count() == 3
    page.click("#picks li:nth-child(3) button")
    assert page.evaluate("document.getElementById('clip-video').currentTime") == pytest.approx(1.48, abs=0.01)


BLUE = """() => [...document.querySelectorAll("#picks img, #strip .picked img")].map((picture) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 96, height: 64 });
  canvas.getContext("2d").drawImage(picture, 0, 0, 96, 64);
  const [red, , blue] = canvas.getContext("2d").getImageData(84, 57, 1, 1).data;
  return blue > 2 * red;
})"""
"""Whether the lower right of each pick is blue, as in every frame of the clip."""


def test_picks_are_shown_of_a_file_that_the_browser_cannot_play(page: Any, tmp_path: Path) -> None:
    page.set_input_files("#clip-file", write_clip(tmp_path / "clip.avi", codec="mpeg4"))
    wait_for(page, "#sentence", "^7 22 37 52$")
    until(lambda: page.evaluate(BLUE) == [True] * 8)
    page.wait_for_selector("#clip-unplayable:visible")
    page.click("#picks li:nth-child(3) button")
    assert not page.is_visible("#clip-video")


def test_a_sample_is_described_like_a_file(page: Any) -> None:
    page.click("#clip .samples button")
    wait_for(page, "#sentence", "^7 22 37 52$")
    assert page.inner_text("#clip .drop strong") == "clip.mp4 – choose another"


def test_the_dial_picks_again(page: Any, clip: Path) -> None:
    page.set_input_files("#clip-file", clip)
    wait_for(page, "#sentence", "^7 22 37 52$")
    page.focus("#rate")
    page.keyboard.press("End")
    wait_for(page, "#sure", "from 16 of 16 frames")
    assert page.inner_text("#rate-value") == "× 4"
    assert page.locator("#picks li").count() == 16


def test_a_film_gets_a_timeline_that_can_be_searched_and_downloaded(page: Any, clip: Path) -> None:
    page.click("#tab-film")
    page.set_input_files("#film-file", clip)
    page.wait_for_selector("#exports:visible")
    sure = ["number 0", "number 13", "number 25", "not sure", "number 50"]
    assert page.locator("#segments span").all_inner_texts() == sure
    assert page.locator("#segments small").all_inner_texts() == ["50 %", "50 %", "50 %", "49 %", "50 %"]
    assert page.locator("#ribbon i").count() == 5
    assert page.get_attribute("#ribbon .doubtful", "title") == "not sure"
    page.fill("#search", "number 2")
    assert page.locator("#segments li:visible").all_inner_texts() == ["0:01\nnumber 25\n50 %"]
    with page.expect_download() as started:
        page.click("#exports button[value=srt]")
    assert started.value.suggested_filename == "timeline.srt"
    assert Path(started.value.path()).read_text().startswith("1\n00:00:00,000 --> 00:00:00,500\nnumber 0\n")


def test_doubtful_sentences_are_shown_as_such_where_they_are_wanted(page: Any, clip: Path) -> None:
    page.click("#tab-film")
    page.set_input_files("#film-file", clip)
    wait_for(page, "#segments .doubtful", "^0:01 not sure 49 %$")
    page.uncheck("#film-sure")
    wait_for(page, "#segments .doubtful", "^0:01 number 38 49 %$")
    page.wait_for_selector("#exports:visible")
    assert page.locator("#segments li").count() == 5


@pytest.mark.parametrize("tab", ["film", "camera"])
def test_without_a_confidence_nothing_is_said_of_it(page: Any, running: Running, tab: str) -> None:
    running.captioner.confidence_note = "the model is not calibrated"
    try:
        page.reload()
        page.wait_for_selector("#access:visible")
        with page.expect_response("**/v1/model") as answer:
            enter(page, TOKEN)
        assert answer.value.json() == {"model": "stub", "doubtful_below": None}
        page.click(f"#tab-{tab}")
        assert not page.is_visible(f"#{tab}-sure")
    finally:
        running.captioner.confidence_note = None


def test_the_camera_is_described_and_a_lost_connection_is_tried_again(page: Any, running: Running) -> None:
    address = f"ws://127.0.0.1:{running.port}/v1/stream"
    page.click("#tab-camera")
    with connect(address, additional_headers={"Authorization": f"Bearer {TOKEN}"}):  # the only place for a stream
        until(lambda: running.service.metrics.open_streams._value.get() == 1)
        page.click("#camera-button")
        wait_for(page, "#error", "^The connection was lost; trying again.$")
    wait_for(page, "#camera-sentence", r"^number \d+ 50 %$")
    assert not page.is_visible("#error")
    page.click("#camera-button")
    assert page.inner_text("#camera-button") == "Start the camera"


ASKING = """() => {
  const { mediaDevices } = navigator;
  const film = mediaDevices.getUserMedia.bind(mediaDevices);
  window.cameras = [];
  mediaDevices.getUserMedia = async (wanted) => {
    await new Promise((resolve) => (window.allow = resolve));
    const camera = await film(wanted);
    cameras.push(camera);
    return camera;
  };
}"""
"""The browser asks before it gives a camera, and waits for `allow`."""
CAMERAS = "() => cameras.map((camera) => camera.getTracks()[0].readyState)"


@pytest.mark.parametrize("leave", ["#camera-button", "#tab-film"])
def test_a_camera_that_is_stopped_before_it_is_allowed_does_not_start(page: Any, leave: str) -> None:
    page.click("#tab-camera")
    page.evaluate(ASKING)
    page.click("#camera-button")
    assert page.inner_text("#camera-button") == "Stop the camera"
    page.click(leave)
    page.evaluate("allow()")
    until(lambda: page.evaluate(CAMERAS) == ["ended"])
    page.click("#tab-camera")
    assert not page.is_visible("#camera-video")
    assert page.inner_text("#camera-button") == "Start the camera"


def test_a_camera_that_is_started_again_before_it_is_allowed_can_be_stopped(page: Any) -> None:
    page.click("#tab-camera")
    page.evaluate(ASKING)
    page.click("#camera-button")
    page.evaluate("() => { window.first = allow; }")
    for _ in range(2):
        page.click("#camera-button")
    page.evaluate("allow(), first()")
    wait_for(page, "#camera-sentence", r"^number \d+ 50 %$")
    assert sorted(page.evaluate(CAMERAS)) == ["ended", "live"]
    page.click("#camera-button")
    assert page.evaluate(CAMERAS) == ["ended", "ended"]


RECORDING = """async (token) => {
  const address = location.origin.replace("http", "ws") + "/v1/stream?fps=10";
  const socket = new WebSocket(address, [`picknet.token.${token}`]);
  const updates = [];
  socket.onmessage = (message) => updates.push(JSON.parse(message.data));
  await new Promise((resolve) => (socket.onopen = resolve));
  const camera = await navigator.mediaDevices.getUserMedia({ video: true });
  const recorder = new MediaRecorder(camera, { mimeType: "video/webm;codecs=vp8" });
  recorder.ondataavailable = async (event) => socket.send(await event.data.arrayBuffer());
  recorder.start(100);
  await new Promise((resolve) => setTimeout(resolve, 1500));
  const closed = new Promise((resolve) => (socket.onclose = (event) => resolve(event.code)));
  recorder.onstop = () => setTimeout(() => socket.send("end"), 100);
  recorder.stop();
  for (const track of camera.getTracks()) track.stop();
  return [await closed, updates.map((update) => update.seconds)];
}"""


def test_what_a_browser_records_is_described(page: Any) -> None:
    code, seconds = page.evaluate(RECORDING, TOKEN)
    assert code == 1000
    assert seconds[0] == 0  # how many follow depends on the machine
    assert seconds == sorted(seconds)


def test_an_error_is_a_sentence(page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "notes.mp4"
    bad.write_text("not a video")
    page.set_input_files("#clip-file", bad)
    wait_for(page, "#error", r"^notes\.mp4: not a known video format$")
    page.wait_for_selector("#clip-shown", state="hidden")


def test_the_page_asks_once_for_the_token_when_it_is_opened(page: Any) -> None:
    page.reload()
    page.wait_for_selector("#access:visible")
    assert not page.is_visible("#error")
    enter(page, TOKEN)
    page.wait_for_selector("#clip .samples button")
    assert not page.is_visible("#access")


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("wrong", "a token is needed: send the header 'Authorization: Bearer TOKEN'"),
        ("two words", "A token has visible ASCII characters only: letters, digits and signs, no spaces."),
        ("日本語", "A token has visible ASCII characters only: letters, digits and signs, no spaces."),
    ],
)
def test_a_token_that_is_not_the_services_is_asked_for_again(page: Any, token: str, said: str) -> None:
    page.reload()
    enter(page, token)
    wait_for(page, "#error", f"^{re.escape(said)}$")
    enter(page, TOKEN)
    page.wait_for_selector("#clip .samples button")
    assert not page.is_visible("#error")


@pytest.mark.parametrize(
    ("tab", "shown"), [("clip", "#sentence"), ("film", "#segments"), ("camera", "#camera-sentence")]
)
def test_what_was_refused_is_done_once_there_is_a_token(page: Any, clip: Path, tab: str, shown: str) -> None:
    page.reload()
    page.wait_for_selector("#access:visible")
    page.click(f"#tab-{tab}")
    if tab == "camera":
        page.click("#camera-button")
    else:
        page.set_input_files(f"#{tab}-file", clip)
    wait_for(page, "#error", "^a token is needed: ")
    assert page.inner_text("#camera-button") == "Start the camera" or tab != "camera"
    enter(page, TOKEN)
    wait_for(page, shown, r"\d")
    assert not page.is_visible("#error")


def test_what_was_not_refused_is_not_done_again(page: Any, running: Running, clip: Path) -> None:
    page.set_input_files("#clip-file", clip)
    wait_for(page, "#sentence", "^7 22 37 52$")
    num_captions = running.captioner.num_captions
    page.evaluate("document.getElementById('access').hidden = false")
    enter(page, "wrong")
    page.wait_for_selector("#access:visible")
    page.click("#tab-film")
    page.set_input_files("#film-file", clip)
    wait_for(page, "#error", "^a token is needed: ")
    enter(page, TOKEN)
    page.wait_for_selector("#exports:visible")
    assert running.captioner.num_captions == num_captions


def test_a_file_can_be_chosen_again(page: Any, clip: Path) -> None:
    page.set_input_files("#clip-file", clip)
    wait_for(page, "#sentence", "^7 22 37 52$")
    # A browser tells of a file only where another one was chosen before.
    assert page.evaluate("document.getElementById('clip-file').files.length") == 0


@pytest.mark.parametrize("leave", ["reload", "close"])
def test_a_film_is_cancelled_with_its_page(window: Any, running: Running, clip: Path, leave: str) -> None:
    page = window.context.new_page()
    page.goto(running.address)
    enter(page, TOKEN)
    running.captioner.gate.clear()
    try:
        page.click("#tab-film")
        page.set_input_files("#film-file", clip)
        wait_for(page, "#segments", "number 0")
        getattr(page, leave)()
        job = list(running.service.jobs._jobs.values())[-1]
        until(job.wants_end.is_set)
    finally:
        running.captioner.gate.set()
        page.close()
    until(job.is_over.is_set)
    assert job.state == "cancelled"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Any, clip: Path, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    page.emulate_media(color_scheme=scheme)
    page.set_input_files("#clip-file", clip)
    wait_for(page, "#sentence", "^7 22 37 52$")
    found = axe.run(page).response["violations"]
    page.focus("#tab-clip")
    page.keyboard.press("ArrowRight")
    page.set_input_files("#film-file", clip)
    page.wait_for_selector("#exports:visible")
    found += axe.run(page).response["violations"]
    page.keyboard.press("ArrowRight")
    page.click("#tab-camera")
    found += axe.run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
