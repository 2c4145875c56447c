"""Which frames to look at: PickNet's picker, the baselines it is compared with, frame budgets and scene changes."""
