"""The service: captions, picked frames and timelines over HTTP, live captions over a WebSocket."""
