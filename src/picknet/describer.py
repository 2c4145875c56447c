"""From picked frames to a caption: once at the end of a scene, or after every pick of a stream."""

import math
from collections import deque
from collections.abc import Iterable, Iterator

from picknet.errors import BadSetting
from picknet.model.confidence import BadCalibration, Confidence, own_entry, written
from picknet.model.folder import TAGS
from picknet.model.memory import SceneMemory
from picknet.model.runtime import Runtime
from picknet.model.sentences import SentenceWriter, Signals
from picknet.picking.picker import Pick, Picker
from picknet.picking.scenes import SceneWatch
from picknet.results import Description, Update
from picknet.video.frame import Frame
from picknet.video.live import Live
from picknet.walk import SceneRule, Walk

NOTHING_TO_SEE = "nothing to see: every picked frame is blank"
"""Whatever the confidence: a sentence about a black screen is invented."""


class Describer:
    """What a model says about picked frames, in one style. Thread-safe."""

    def __init__(self, runtime: Runtime, *, model: str, style: str | None = None) -> None:
        self._runtime = runtime
        self._model = model
        styles = runtime.vocabulary.styles
        own = own_entry(runtime.card, styles)
        if style == own:
            style = None
        if style and style not in styles:
            names = ", ".join([*([own] if own else []), *styles])
            possible = f"possible: {names}" if styles else "it has only its own style"
            raise BadSetting(f"style is {style!r}, which the model {model} was not trained on; {possible}")
        self.confidence = Confidence.from_card(
            runtime.card, runtime.folder / "card.json", style=style, styles=styles
        )
        """None where the model is not calibrated for the style."""
        dataset = style or own
        forecast, match, critic = runtime.forecast(dataset), runtime.match(dataset), runtime.critic(dataset)
        lacks = None
        if self.confidence and self.confidence.needs_tags and not runtime.tags:
            lacks = TAGS
        elif self.confidence and "forecast" in self.confidence.weights and not forecast:
            lacks = f"a forecast for its style in {TAGS}"
        elif self.confidence and (self.confidence.match_weight or "match" in self.confidence.weights) and not match:
            lacks = f"a match for its style in {TAGS}"
        elif self.confidence and "critic" in self.confidence.weights and not critic:
            lacks = f"a critic for its style in {TAGS}"
        if lacks:
            raise BadCalibration(
                f"{runtime.folder}: its confidence needs {lacks}, which is missing; calibrate again, or remove the "
                "confidence from card.json"
            )
        self.confidence_note: str | None = None
        """Why captions have no confidence, for people; None where they have one."""
        if self.confidence is None:
            wanted = f" for the style {style}" if style else ""
            self.confidence_note = f"the model {model} has no confidence{wanted}; fit one with `picknet calibrate`"
        self.writer = SentenceWriter(
            runtime,
            first_word=runtime.vocabulary.first_word(style),
            tags_weight=self.confidence.tags_weight if self.confidence else 0.0,
            match_weight=self.confidence.match_weight if self.confidence else 0.0,
            forecast=forecast,
            match=match,
            critic=critic,
        )

    def checked_min_confidence(self, min_confidence: float | None) -> float:
        """0 for none; an error where captions have no confidence."""
        if min_confidence is None:
            return 0.0
        if not 0 <= min_confidence <= 1:
            raise BadSetting(f"min_confidence is {min_confidence}: 0 to 1 are possible")
        if self.confidence_note:
            raise BadSetting(f"min_confidence is {min_confidence:g}: {self.confidence_note}")
        return min_confidence

    def describe(
        self,
        picked: Iterable[tuple[Frame, Pick]],
        *,
        beam: int,
        count: int = 1,
        min_confidence: float = 0.0,
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
        sentences, signals = self.writer.write(memory.state(), beam=beam, count=count)
        confidence, not_sure = self._judged(signals, memory, min_confidence)
        return Description(tuple(picks), sentences, signals, confidence, not_sure, num_scenes)

    def updates(
        self,
        live: Live,
        picker: Picker,
        *,
        beam: int,
        new_scene: SceneRule | None,
        min_confidence: float = 0.0,
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
                sentences, signals = self.writer.write(memory.state(), beam=beam)
                confidence, not_sure = self._judged(signals, memory, min_confidence)
                previous, text = text, "" if not_sure else sentences[0].text
                yield Update(
                    pick.seconds,
                    text,
                    text != previous,
                    tuple(picks),
                    walk.frames_seen,
                    total_picks,
                    confidence,
                    scene,
                    live.lag,
                    live.damage,
                    live.name,
                    self._model,
                    not_sure,
                )

    def _judged(
        self, signals: Signals, memory: SceneMemory, min_confidence: float
    ) -> tuple[float | None, str | None]:
        """The confidence of a caption, and why there is none, if there is none."""
        confidence = self.confidence.of(signals) if self.confidence else None
        if memory.is_blank:
            return confidence, NOTHING_TO_SEE
        if confidence is None:
            return None, None
        if confidence >= min_confidence:
            return confidence, None
        return confidence, f"confidence {written(confidence, limit=min_confidence)} is below {min_confidence:g}"

    def _warm_up(self, picker: Picker, beam: int) -> None:
        """Run every graph once: compiling takes a second, in which a live source would lose frames."""
        size = self._runtime.config.model.image_size
        blank = Frame.blank(size)
        list(picker.pick([blank, blank]))
        memory = SceneMemory(self._runtime)
        memory.add(blank)
        self.writer.candidates(memory.state(), beam=beam)
