"""From picked frames to a caption: once at the end of a scene, or after every pick of a stream."""

import math
from collections import deque
from collections.abc import Iterable, Iterator

from picknet.errors import BadSetting
from picknet.model.confidence import Confidence
from picknet.model.memory import SceneMemory
from picknet.model.runtime import Runtime
from picknet.model.sentences import Sentence, SentenceWriter
from picknet.picking.picker import Pick, Picker
from picknet.picking.scenes import SceneWatch
from picknet.results import Description, Update
from picknet.video.frame import Frame
from picknet.video.live import Live
from picknet.walk import SceneRule, Walk


class Describer:
    """What a model says about picked frames, in one style. Thread-safe."""

    def __init__(self, runtime: Runtime, *, model: str, style: str | None = None) -> None:
        self._runtime = runtime
        self._model = model
        styles = runtime.vocabulary.styles
        if style and style not in styles:
            possible = f"possible: {', '.join(styles)}" if styles else "it has only its own style"
            raise BadSetting(f"style is {style!r}, which the model {model} was not trained on; {possible}")
        self.confidence = Confidence.from_card(runtime.card, runtime.folder / "card.json")
        """Calibrated for captions in the model's own style; None otherwise."""
        self.confidence_note: str | None = None
        """Why captions have no confidence, for people; None where they have one."""
        if self.confidence is None:
            self.confidence_note = f"no confidence: the model {model} is not calibrated (run `picknet calibrate`)"
        elif style:
            self.confidence = None
            self.confidence_note = f"no confidence: the model {model} is calibrated for its own style, not for {style}"
        self.writer = SentenceWriter(runtime, first_word=runtime.vocabulary.first_word(style))

    def describe(
        self, picked: Iterable[tuple[Frame, Pick]], *, beam: int, count: int = 1
    ) -> Description | None:
        """What the picked frames show together; None where nothing is picked."""
        memory, is_cut = SceneMemory(self._runtime), SceneWatch(patience=1)
        picks, num_scenes = [], 1
        for frame, pick in picked:
            memory.add(frame)
            picks.append(pick)
            num_scenes += is_cut(frame)
        if not picks:
            return None
        sentences = self.writer.write(memory, beam=beam, count=count)
        return Description(tuple(picks), sentences, self._confidence(sentences[0]), num_scenes)

    def updates(
        self, live: Live, picker: Picker, *, beam: int, new_scene: SceneRule | None
    ) -> Iterator[Update]:
        """The caption so far after every pick. new_scene: see `Captioner.stream`."""
        if live.is_live:
            self._warm_up(picker, beam)
        max_picks = math.inf if new_scene else self._runtime.config.video.num_frames
        text, total_picks, scene = None, 0, -1
        with live:
            walk = Walk(live.name, live, picker, live)
            described: int | None = None  # the walk's number of the scene in memory
            memory = SceneMemory(self._runtime)
            picks: deque[Pick] = deque(maxlen=self._runtime.config.video.num_frames)
            watch = SceneWatch()
            # One walk through all scenes: the picker remembers what it has seen before.
            for frame, pick in walk.picks(walk.watched(new_scene or watch)):
                # An unfamiliar frame that was chosen is no flash: the scene need not wait for a second one. A picker
                # that picks every frame chooses none.
                if watch.is_unfamiliar and picks and pick.index > picks[-1].index + 1:
                    watch.begin()
                    walk.scene += 1
                if walk.scene != described or len(picks) == max_picks:
                    memory, described = SceneMemory(self._runtime), walk.scene
                    picks.clear()
                    scene += 1
                memory.add(frame)
                picks.append(pick)
                total_picks += 1
                previous, sentence = text, self.writer.write(memory, beam=beam)[0]
                text = sentence.text
                yield Update(
                    pick.seconds,
                    text,
                    text != previous,
                    tuple(picks),
                    walk.frames_seen,
                    total_picks,
                    self._confidence(sentence),
                    scene,
                    live.lag,
                    live.damage,
                    live.name,
                    self._model,
                )

    def _confidence(self, sentence: Sentence) -> float | None:
        return self.confidence.of(sentence.text, sentence.log_probability) if self.confidence else None

    def _warm_up(self, picker: Picker, beam: int) -> None:
        """Run every graph once: compiling takes a second, in which a live source would lose frames."""
        size = self._runtime.config.model.image_size
        blank = Frame.blank(size)
        list(picker.pick([blank, blank]))
        memory = SceneMemory(self._runtime)
        memory.add(blank)
        self.writer.candidates(memory.state(), beam=beam)
        if self._runtime.computes_in_f16:
            memory.exact_state()
