"""Pictures for people: contact sheets, storyboards, notebooks, and picked frames as files or chat messages."""
