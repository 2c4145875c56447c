"""How good a captioner and its picker are: evaluation, comparison, reports and their charts."""
