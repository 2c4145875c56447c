"""Settings: the paper's defaults, TOML, overrides, and errors that say what is possible."""

from pathlib import Path

import pytest

from picknet.config import BadConfig, Config, load_config, parse_config, to_toml

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def test_the_defaults_are_the_papers():
    config = Config()
    assert (config.video.num_frames, config.model.embedding_size, config.model.state_size) == (30, 512, 1024)
    assert (config.model.picker_hidden, config.model.dropout, config.beam) == (1024, 0.5, 1)
    assert (config.reward.min_picks, config.reward.max_picks_floor, config.reward.penalty) == (3, 7, -1.0)
    rates = [config.supervision.learning_rate, config.reinforcement.learning_rate, config.adaptation.learning_rate]
    assert rates == [3e-4, 3e-4, 1e-4]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_config_in_the_repository_loads_and_survives_being_written(path):
    config = load_config(path)
    assert parse_config(to_toml(config)) == config


def test_overrides_are_laid_over_the_file():
    config = parse_config("[reward]\npenalty = -2.0", ["reward.penalty=-3", "reward.diversity=deviation", "seed=7"])
    assert (config.reward.penalty, config.reward.diversity, config.seed) == (-3.0, "deviation", 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[reward]\npenality = 1", "config: unknown setting 'reward.penality'; did you mean 'reward.penalty'?"),
        ("penalty = 1", "config: unknown setting 'penalty'; did you mean 'reward.penalty'?"),
        ("beam = 0", "beam is 0; possible: 1 to 100"),
        ("beam = true", "config: beam is True; expected int"),
        ("[model]\ndropout = 'much'", "config: model.dropout is 'much'; expected float"),
        ("[reward]\ndiversity = 'x'", "config: reward.diversity is 'x'; possible: deviation, cosine"),
        ("reward = 3", "config: 'reward' is a group of settings, got 3"),
        ("[text]\nvocabulary_splits = 'x'", "config: text.vocabulary_splits is 'x'; expected a list of strings"),
        ("seed = -1", "seed is -1; possible: 0 to 9223372036854775808"),
        ("[supervision]\nteacher_forcing_k = 0", "supervision.teacher_forcing_k is 0.0; possible: 0.001 to 1000000.0"),
        ("[video]\nmin_frames = 3", "config: unknown setting 'video.min_frames'; did you mean 'video.num_frames'?"),
        ("[model]\nepochs = 3", "config: unknown setting 'model.epochs'; did you mean 'supervision.epochs'?"),
        ("[video]\nxyz = 3", "config: unknown setting 'video.xyz'; known: num_frames"),
        ("[adaptation]\nepochs = -1", "adaptation.epochs is -1; possible: 0 to 1000000"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_possible(text, message):
    with pytest.raises(BadConfig) as caught:
        parse_config(text)
    assert str(caught.value) == message


def test_a_bad_override_says_what_is_expected():
    with pytest.raises(BadConfig, match=r"--set reward\.penalty: expected name=value"):
        parse_config("", ["reward.penalty"])


def test_text_that_is_no_toml_and_files_that_are_not_there(tmp_path):
    with pytest.raises(BadConfig, match="config: is not TOML"):
        parse_config("[reward")
    with pytest.raises(BadConfig, match=r"none.toml: cannot be read \(No such file or directory\)"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(BadConfig, match=r"latin.toml: is not UTF-8 text \(byte 5\)"):
        load_config(tmp_path / "latin.toml")
