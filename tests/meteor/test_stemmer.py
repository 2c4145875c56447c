import pytest

from picknet.meteor.stemmer import stem


# From the description of the algorithm, https://snowballstem.org/algorithms/english/stemmer.html
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("skies sky dying news early", "sky sky die news earli"),
        ("caresses ties cries gas gaps this kiwis", "caress tie cri gas gap this kiwi"),
        ("agreed luxuriated hopping hoped hoping bled", "agre luxuri hop hope hope bled"),
        ("inning proceeded exceeds herrings", "inning proceed exceed herring"),
        ("cry by say youth boy yellow", "cri by say youth boy yellow"),
        ("consistency consisted consolation consolingly", "consist consist consol consol"),
        ("knightly knobs knotted knuckles", "knight knob knot knuckl"),
        ("generously communism arsenal", "generous communism arsenal"),
        ("relational conditional rationalize vietnamization", "relat condit ration vietnam"),
        ("hopefulness possibly apology argumentative adoption", "hope possibl apolog argument adopt"),
        ("controlled roll rate cease", "control roll rate ceas"),
        ("dog's dogs' 'tis a", "dog dog tis a"),
    ],
)
def test_stems(words: str, expected: str) -> None:
    assert [stem(word) for word in words.split()] == expected.split()
