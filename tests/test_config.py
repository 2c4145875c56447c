"""Settings: the paper's defaults, TOML, overrides, and errors that say what is possible."""

import time
from pathlib import Path

import pytest

from picknet.config import BadConfig, Config, load_config, parse_config, to_toml

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def test_the_defaults_are_the_papers():
    config = Config()
    assert (config.video.num_frames, config.model.embedding_size, config.model.state_size) == (30, 512, 1024)
    assert (config.model.picker_hidden, config.model.dropout, config.beam) == (1024, 0.5, 1)
    assert (config.reward.min_picks, config.reward.max_picks_floor, config.reward.penalty) == (3, 7, -1.0)
    model = config.model
    assert (model.grid, model.attention_heads, model.tied_words, model.picker) == (1, 0, False, "difference")
    assert (config.supervision.cnn_learning_rate, config.supervision.min_frames) == (0, 0)
    assert (config.reinforcement.baseline, config.reward.price) == ("greedy", 0)
    rates = [config.supervision.learning_rate, config.reinforcement.learning_rate, config.adaptation.learning_rate]
    assert rates == [3e-4, 3e-4, 1e-4]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_config_in_the_repository_loads_and_can_be_written_and_read_back(path):
    config = load_config(path)
    assert parse_config(to_toml(config)) == config


def test_overrides_replace_settings_of_the_file():
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
        (
            "[model]\nattention_heads = 7",
            "model.attention_heads is 7; possible: divisors of model.embedding_size, 512",
        ),
        ("[model]\ndrop_path = 1", "model.drop_path is 1.0; possible: 0 to 0.99"),
        (
            "[model]\ncell_dropout = 0.3\nsystem = 'mean'",
            'model.cell_dropout is 0.3 and model.system is "mean": cells are dropped by picknet\'s encoder alone; '
            "set model.cell_dropout to 0",
        ),
        ("[reward]\nlanguage_weight = nan", "reward.language_weight is nan; possible: 0 to 1000000"),
        ("[reward]\ndiversity_weight = -1", "reward.diversity_weight is -1.0; possible: 0 to 1000000"),
        ("[reward]\npenalty = inf", "reward.penalty is inf; possible: -1000000 to 1000000"),
        ("[reward]\nprice = nan", "reward.price is nan; possible: 0 to 1000000"),
        ("[model]\npicker = 'x'", "config: model.picker is 'x'; possible: difference, rate"),
        ("[reinforcement]\nfilms = -1", "reinforcement.films is -1; possible: 0 to 65536"),
        ("[reinforcement]\nfilm_frames = 15", "reinforcement.film_frames is 15; possible: 16 to 65536"),
        (
            "[reinforcement]\nfilms = 4\nsamples = 2\nbaseline = 'others'",
            'reinforcement.films needs model.picker = "rate" and reinforcement.baseline = "others"',
        ),
        (
            "[model]\npicker = 'rate'\n[reinforcement]\nfilms = 4",
            'reinforcement.films needs model.picker = "rate" and reinforcement.baseline = "others"',
        ),
        ("[model]\nglance = 'gray'", "config: model.glance is 'gray'; possible: grey, colour, motion, packets"),
        (
            "[model]\npicker = 'rate'\nglance = 'colour'\n"
            "[reinforcement]\nfilms = 4\nsamples = 2\nbaseline = 'others'",
            'reinforcement.films is 4 and model.glance is "colour": films are made of grey glances; '
            "set reinforcement.films to 0, which trains on clips alone",
        ),
        ("[model]\ngrid = 0", "model.grid is 0; possible: 1 to 64"),
        ("[supervision]\ncrop = 1.5", "supervision.crop is 1.5; possible: 0.1 to 1"),
        # The frames of one clip have to fit into a batch: all 30, or max_frames where there are random subsets.
        (
            "[supervision]\ncnn_learning_rate = 1e-4\nframes_per_batch = 29",
            "supervision.frames_per_batch is 29; possible: 30 to 1048576",
        ),
        (
            "[supervision]\ncnn_learning_rate = 1e-4\nmax_frames = 8\nframes_per_batch = 29",
            "supervision.frames_per_batch is 29; possible: 30 to 1048576",
        ),
        (
            "[supervision]\ncnn_learning_rate = 1e-4\nmin_frames = 1\nmax_frames = 8\nframes_per_batch = 7",
            "supervision.frames_per_batch is 7; possible: 8 to 1048576",
        ),
        ("[reinforcement]\nbaseline = 'others'", "reinforcement.samples is 1; possible: 2 to 1000"),
    ],
)
def test_a_bad_setting_is_an_error_that_says_what_is_possible(text, message):
    with pytest.raises(BadConfig) as caught:
        parse_config(text)
    assert str(caught.value) == message


def test_a_bad_override_says_what_is_expected():
    with pytest.raises(BadConfig, match=r"--set reward\.penalty: expected name=value"):
        parse_config("", ["reward.penalty"])


def test_invalid_toml_and_unreadable_files_are_errors(tmp_path):
    with pytest.raises(BadConfig, match="config: not valid TOML"):
        parse_config("[reward")
    with pytest.raises(BadConfig, match=r"none.toml: cannot be read \(No such file or directory\)"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(BadConfig, match=r"latin.toml: not UTF-8 text \(byte 5\)"):
        load_config(tmp_path / "latin.toml")


def test_a_config_written_by_an_older_version_loads_without_its_removed_stage():
    config = parse_config("seed = 3\n[refinement]\nepochs = 8\nsamples = 5\n")
    assert config == parse_config("seed = 3")
    assert "refinement" not in to_toml(config)
    with pytest.raises(BadConfig, match="unknown setting 'refinement'"):
        parse_config("", ["refinement.epochs=3"])


def test_a_name_of_many_parts_is_refused_before_tomllib_reads_it():
    deep = ".".join("a" * 9)
    for text in (f"{deep} = 1", f"[{deep}]", f"[[ {deep} ]]", f"reward = {{{deep} = 1}}", "\"a\" . 'a' ." * 4 + "a=1"):
        with pytest.raises(BadConfig, match=r"^config: holds a name of 9 parts; possible: 1 to 8$"):
            parse_config(f"# a comment's text\n{text}\n")
    # Quotes that belong to a text or a comment begin no text in which the name would be hidden.
    hidden = [f'x = """a"""" # " """\n{deep}=1 #"""', f"x = '''a'''' # ' '''\n{deep}=1", f'x = "\\"" # "\n{deep} = 1']
    for text in hidden:
        with pytest.raises(BadConfig, match=r"holds a name of 9 parts; "):
            parse_config(text)


@pytest.mark.parametrize("quote", ["'", '"', "'''", '"""'])
def test_dots_in_texts_numbers_and_comments_are_no_names(quote):
    many = "a.b.c.d.e.f.g.h.i.j.k # not a comment [="
    text = f"length_exponent = 0.5 # {many} '\n[text]\nvocabulary_splits = [{quote}{many}{quote}, '{many}']\n"
    config = parse_config(text + "[reward]\npenalty = -1.5\n")
    assert config.text.vocabulary_splits == (many, many)
    assert (config.length_exponent, config.reward.penalty) == (0.5, -1.5)


@pytest.mark.parametrize("piece", ['"\\"', '"""\\', "'''", "a.", "\\", '"\n', "a" * 100])
def test_looking_for_names_takes_little_time(piece):
    start = time.perf_counter()
    with pytest.raises(BadConfig):
        parse_config(piece * (2**16 // len(piece)))
    assert time.perf_counter() - start < 0.5


def test_a_config_may_have_64_kilobytes(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("#" * (2**16 - 1) + "\n")
    assert load_config(path) == Config()
    for content in ("#" * 2**16 + "\n", "#" + "é" * 2**15):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(BadConfig, match="is too large for a config; possible: at most 65,536 bytes"):
            load_config(path)
        with pytest.raises(BadConfig, match=r"^config: is too large for a config; "):
            parse_config(content)
