"""Ask a vision-language model about a video, with a few of its frames.

Works with any server that has an OpenAI-compatible chat API and a vision model: Ollama, llama.cpp, vLLM, LM Studio.

    python examples/ask.py film.mp4 "What happens?" --model llama3.2-vision
    python examples/ask.py film.mp4 "Who comes in?" --model qwen2.5-vl --server http://localhost:8000/v1 --budget 12

If the server needs a key, set OPENAI_API_KEY.
"""

import argparse
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import picknet

OLLAMA = "http://localhost:11434/v1"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video")
    parser.add_argument("question")
    parser.add_argument("--model", required=True, help="name of the model on the server")
    parser.add_argument("--server", default=OLLAMA, metavar="URL", help=f"address of the API, including /v1 ({OLLAMA})")
    parser.add_argument("--budget", type=int, default=8, help="maximum number of frames (8)")
    parser.add_argument("--max-side", type=int, default=768, metavar="PIXELS", help="shrink larger frames (768)")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"https?://[^@]+", options.server):
        parser.error("--server: expected an address like http://localhost:8000/v1; a key goes into OPENAI_API_KEY")
    try:
        message = question_about(options.video, options.question, budget=options.budget, max_side=options.max_side)
    except picknet.PicknetError as error:
        sys.exit(f"ask.py: {error}")
    print(answer(options.server, {"model": options.model, "messages": [message]}))


def question_about(video: str, question: str, *, budget: int, max_side: int) -> dict[str, Any]:
    """A chat message: the question, then the time of each frame and the frame."""
    frames = picknet.pick(video, budget=budget)
    text = f"These are {len(frames)} frames of a video, each preceded by its time. {question}"
    parts = picknet.openai_parts(frames, max_side=max_side)
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


def answer(server: str, body: dict[str, Any]) -> str:
    url = f"{server.rstrip('/')}/chat/completions"
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=600) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        sys.exit(f"ask.py: {url}: {error.code} {error.reason}: {error.read(500).decode(errors='replace').strip()}")
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"ask.py: {url}: no answer ({getattr(error, 'reason', error)})")
    except (ValueError, LookupError, TypeError) as error:
        sys.exit(f"ask.py: {url}: not an answer of a chat API ({error!r})")


if __name__ == "__main__":
    main()
