"""What a training reports while it runs."""


class TrainingProgress:
    """Methods that `train` calls while it runs. They do nothing: subclass it and override those you need."""

    def on_clip(self, split: str, done: int, total: int) -> None:
        """A clip of a split has been decoded, or found in the cache."""

    def on_epoch(self, stage: str, done: int, total: int, figures: dict[str, float]) -> None:
        """An epoch of a stage is done; `figures` are the columns of metrics.csv and `best_epoch`."""

    def on_note(self, text: str) -> None:
        """Something that people should know, such as clips that cannot be read."""
