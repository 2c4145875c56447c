"""HTML for notebooks."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
from clips import picture
from PIL import Image

from picknet.show.notebook import MAX_IMAGES, MAX_SIDE, html
from picknet.show.page import Thumbnail


class Reader(HTMLParser):
    def __init__(self, content):
        super().__init__()
        self.tags, self.text, self.images, self.open = [], [], [], []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attributes))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_title_the_facts_and_the_images_with_their_times_are_shown():
    frames = [Thumbnail(0, 1.25, picture(1, width=640, height=360)), Thumbnail(3, 63.5, picture(2))]
    page = Reader(html("a cat is playing", ["confidence 0.72", "2 picks"], frames))
    assert page.open == []
    assert page.text == ["a cat is playing", "confidence 0.72", "2 picks", "0:01.2", "1:03.5"]
    for shown in page.images:
        kind, content = shown["src"].split(",")
        assert kind == "data:image/jpeg;base64"
        with Image.open(io.BytesIO(base64.b64decode(content, validate=True))) as image:
            assert (str(image.width), str(image.height)) == (shown["width"], shown["height"])
            assert max(image.size) <= MAX_SIDE


def test_text_is_escaped():
    text = "<script>alert('&')</script> \"quoted\""
    page = Reader(html(text, [text], []))
    assert page.text == [text, text]
    assert set(page.tags) == {"div"}


def test_nothing_is_fetched_and_no_colour_is_fixed():
    content = html("a cat", ["0.5"], [Thumbnail(0, 0.0, picture(1))])
    assert "script" not in content
    assert "http" not in content
    assert not re.search(r"(?<![\w-])(color|background)", re.sub(r"base64,[^\"]+", "", content))


def test_many_images_are_thinned_out_evenly():
    frames = [Thumbnail(second, float(second), np.zeros((9, 16, 3), np.uint8)) for second in range(120)]
    page = Reader(html("a cat", [], frames))
    assert len(page.images) == MAX_IMAGES
    assert page.text[1:3] == ["0:05.0", "0:15.0"]
