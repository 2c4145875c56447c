"""Pictures for people: contact sheets, storyboards, and picked frames as files and as parts of a chat message."""
