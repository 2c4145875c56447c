"""Which frames to look at: PickNet's own picker, the plain ones it is compared with, budgets and scenes."""
