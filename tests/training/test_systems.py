"""The captioning systems of the paper's tables: what is special in each, and what all have in common."""

import typing

import numpy as np
import pytest
import torch

from picknet.config import SYSTEMS_WITHOUT_GRAPHS, ModelConfig, SystemName
from picknet.model.folder import BadModel, ModelFolder
from picknet.text import BOS, EOS, NEVER_WRITTEN, PAD, UNK
from picknet.training.systems import SYSTEMS, build, ruc_uva
from picknet.training.systems.candidates import bag_of_words, beam_candidates
from picknet.training.systems.densecap import region_sequences
from picknet.training.systems.hrne import ends_of_chunks
from picknet.training.systems.ms_rnn import divergence
from picknet.training.systems.parts import Memory, WordDecoder

FEATURES, WORDS = 7, 9


def built(system, **settings):
    torch.manual_seed(0)
    sizes = {"embedding_size": 6, "state_size": 5, "dropout": 0.0, **settings}
    encoder, decoder = build(ModelConfig(system=system, **sizes), feature_size=FEATURES, num_words=WORDS)
    return encoder.eval(), decoder.eval()


def features(clips=3, picks=4):
    return torch.randn(clips, picks, 1, FEATURES, generator=torch.Generator().manual_seed(1))


def one_by_one(encoder, frames):
    """The memory of clips without padding, read frame by frame: a row for each clip."""
    state, cells = encoder.start(len(frames)), []
    for frame in frames.unbind(1):
        state, *kept = encoder.step(frame, state)
        cells.append(kept)
    keys, values = (torch.cat(parts, dim=1) for parts in zip(*cells, strict=True))
    return zip(state.h, keys, values, torch.ones(keys.shape[:2], dtype=torch.bool), strict=True)


every_system = pytest.mark.parametrize("system", SYSTEMS)


@pytest.mark.parametrize("system", sorted(SYSTEMS.keys() - {"densecap"}))  # it reads backwards as well
def test_frames_read_one_by_one_give_the_memory_of_the_whole_clip(system):
    encoder, _ = built(system)
    frames, counts = features(), torch.tensor([4, 2, 1])
    whole = encoder(frames, counts)
    for clip, count in enumerate(counts.tolist()):
        ((video, keys, values, _),) = one_by_one(encoder, frames[clip : clip + 1, :count])
        if system == "hrne":  # of a chunk, its end alone; of its state, g
            video, keys, values, whole = video[:5], keys[-1:], values[-1:], whole._replace(video=whole.video[:, :5])
        torch.testing.assert_close(whole.video[clip], video)
        present = whole.present[clip]
        torch.testing.assert_close(whole.keys[clip][present], keys)
        torch.testing.assert_close(whole.values[clip][present], values)
    assert (whole.keys.shape[1] > 0) == encoder.attended == ModelConfig(system=system).attends


@every_system
def test_padding_changes_nothing(system):
    encoder, _ = built(system)
    frames, counts = features(), torch.tensor([4, 2, 1])
    whole, shorter = encoder(frames, counts), encoder(frames[1:, :2], counts[1:])
    torch.testing.assert_close(whole.video[1:], shorter.video)


@every_system
def test_words_written_one_by_one_have_the_probabilities_of_the_whole_sentence(system):
    encoder, decoder = built(system)
    memory = encoder(features(), torch.tensor([4, 4, 4]))
    words = torch.tensor([[BOS, 4, 5], [BOS, 6, 7], [BOS, 8, 4]])
    logits = decoder(memory, words)
    state = torch.zeros(3, decoder.size)
    for t in range(3):
        log_probabilities, state = decoder.step(words[:, t], *memory[:3], state)
        torch.testing.assert_close(logits[:, t].log_softmax(-1), log_probabilities)
    fed_back = decoder(memory, words, feed_back=(False, True, False))
    logits[:, :, [PAD, BOS, UNK]] = -torch.inf
    own = decoder(memory, torch.stack([words[:, 0], logits[:, 0].argmax(-1), words[:, 2]], dim=1))
    torch.testing.assert_close(fed_back, own)


@every_system
def test_a_few_steps_teach_a_system_to_tell_two_videos_apart(system):
    encoder, decoder = built(system, embedding_size=16, state_size=16)
    frames, counts = features(clips=2), torch.tensor([4, 3])
    words = torch.tensor([[BOS, 4, 5, EOS, PAD], [BOS, 6, 7, 8, EOS]])
    parameters = list({id(p): p for module in (encoder, decoder) for p in module.parameters()}.values())
    optimiser = torch.optim.Adam(parameters, lr=0.02)
    settings = {"feed_back": (), "never_written": (PAD, BOS, UNK), "label_smoothing": 0.0}
    for _ in range(60):
        optimiser.zero_grad()
        decoder.loss(encoder(frames, counts), words, **settings).backward()
        optimiser.step()
    assert all(parameter.grad is not None for parameter in parameters)
    written = decoder.write(encoder(frames, counts), max_words=8)
    assert written[:, :4].tolist() == words[:, 1:].tolist()


def test_the_mean_of_features_is_taken_of_the_frames_that_there_are():
    encoder, _ = built("mean")
    frames = features()
    expected = encoder.embed(frames[1, :2, 0].mean(0))
    torch.testing.assert_close(encoder(frames, torch.tensor([4, 2, 1])).video[1], expected)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(module):
    return {name: weight.detach().double().numpy() for name, weight in module.state_dict().items()}


def lstm(w, name, x, h, c):
    """One step of an LSTM in float64."""
    gates = x @ w[f"{name}.weight_ih"].T + w[f"{name}.bias_ih"] + h @ w[f"{name}.weight_hh"].T + w[f"{name}.bias_hh"]
    i, f, g, o = np.split(gates, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def test_ta_weighs_the_frames_by_its_state_before_each_word():
    encoder, decoder = built("ta")
    memory = encoder(features(clips=1), torch.tensor([4]))
    w, (mean, keys, values, _) = arrays(decoder), (part.double().detach().numpy() for part in memory)
    h, c = np.split(np.tanh(mean @ w["start.weight"].T + w["start.bias"]), 2, axis=-1)
    scores = np.tanh(h @ w["attention.query.weight"].T + keys[0]) @ w["attention.score.weight"][0]
    weights = np.exp(scores) / np.exp(scores).sum()
    found = (weights[:, None] * values[0]).sum(0, keepdims=True)
    word = w["embed.weight"][[BOS]]
    h, c = lstm(w, "lstm", np.concatenate([word, found], axis=1), h, c)
    joined = np.concatenate([h, found, word], axis=1)
    output = np.tanh(joined @ w["before_output.weight"].T + w["before_output.bias"])
    logits = output @ w["output.weight"].T + w["output.bias"]
    np.testing.assert_allclose(decoder(memory, torch.tensor([[BOS]])).detach().numpy()[0], logits, atol=1e-5)
    assert weights.std() > 0


def test_s2vt_writes_with_the_stack_that_has_read_and_goes_on_with_its_states():
    encoder, decoder = built("s2vt")
    assert decoder.stack is encoder.stack
    frames = features(clips=1, picks=2)
    w, state = arrays(encoder), [np.zeros((1, 5))] * 4
    seen = frames[0, :, 0].double().numpy() @ w["embed.weight"].T + w["embed.bias"]
    nothing, embedded = np.zeros((1, 6)), decoder.embed.weight.detach().double().numpy()
    inputs = [(seen[:1], nothing), (seen[1:], nothing), (nothing, embedded[[BOS]]), (nothing, embedded[[4]])]
    for frame, word in inputs:
        h1, c1 = lstm(w, "stack.first", frame, *state[:2])
        h2, c2 = lstm(w, "stack.second", np.concatenate([h1, word], axis=1), *state[2:])
        state = [h1, c1, h2, c2]
    logits = decoder(encoder(frames, torch.tensor([2])), torch.tensor([[BOS, 4]]))[0, 1]
    expected = state[2] @ decoder.output.weight.detach().double().numpy().T
    np.testing.assert_allclose(logits.detach().numpy(), expected[0], atol=1e-5)


def test_lstm_e_starts_with_the_video_and_adds_the_distance_of_video_and_bag_of_words():
    encoder, decoder = built("lstm-e")
    memory = encoder(features(clips=2), torch.tensor([4, 4]))
    words = torch.tensor([[BOS, 4, 5, EOS, PAD], [BOS, UNK, 6, 6, EOS]])
    w, video = arrays(decoder), memory.video.detach().double().numpy()
    bags = np.stack([w["embed.weight"][[4, 5]].sum(0), w["embed.weight"][[6, 6]].sum(0)])
    relevance = ((video - bags) ** 2).mean(1)
    np.testing.assert_allclose(decoder.relevance(memory, words).detach().numpy(), relevance, rtol=1e-5)
    settings = {"feed_back": (), "never_written": (), "label_smoothing": 0.0}
    log_probabilities = decoder(memory, words[:, :-1]).log_softmax(-1).detach().double().numpy()
    coherence = -sum(log_probabilities[i, t, word] for i in range(2) for t, word in enumerate(words[i, 1:]) if word) / 2
    expected = 0.3 * relevance.mean() + 0.7 * coherence
    np.testing.assert_allclose(decoder.loss(memory, words, **settings).item(), expected, rtol=1e-5)
    nothing = np.zeros((2, 5))
    h, c = lstm(w, "lstm", video, nothing, nothing)
    h, _ = lstm(w, "lstm", w["embed.weight"][[BOS, BOS]], h, c)
    logits = h @ w["output.weight"].T + w["output.bias"]
    np.testing.assert_allclose(decoder(memory, words[:, :1])[:, 0].detach().numpy(), logits, atol=1e-5)


def test_p_rnn_sees_what_changes_between_frames_and_shares_its_words():
    encoder, decoder = built("p-rnn")
    frames = features(clips=1, picks=3)
    memory = encoder(frames, torch.tensor([3]))
    changes = encoder.see(frames)[0, :, 6:]
    expected = torch.stack([torch.zeros(6), changes[1] - changes[0], changes[2] - changes[1]])
    torch.testing.assert_close(memory.values[0, 1::2], expected)
    assert decoder.output.weight is decoder.embed.weight
    still = encoder(frames[:, :1].expand(-1, 3, -1, -1), torch.tensor([3]))
    assert torch.count_nonzero(still.values[0, 1::2]) == 0


def test_hrne_reads_chunks_of_eight_frames_and_the_decoder_attends_to_their_ends():
    encoder, _ = built("hrne")
    frames = features(clips=1, picks=10)
    w, nothing = arrays(encoder), np.zeros((1, 5))
    seen = frames[0, :, 0].double().numpy() @ w["embed.weight"].T + w["embed.bias"]
    g, g_cell, upper = nothing, nothing, []
    for chunk in (seen[:8], seen[8:]):
        h, c, states, scores = nothing, nothing, [], []
        for x in chunk:
            h, c = lstm(w, "lower", x[None], h, c)
            hidden = h @ w["frame_key.weight"].T + w["frame_key.bias"] + g @ w["query.weight"].T
            states.append(h)
            scores.append((np.tanh(hidden) @ w["score.weight"].T).item())
        weights = np.exp(scores) / np.exp(scores).sum()
        summary = sum(weight * state for weight, state in zip(weights, states, strict=True))
        g, g_cell = lstm(w, "upper", summary, g, g_cell)
        upper.append(g)
    memory = encoder(frames, torch.tensor([10]))
    np.testing.assert_allclose(memory.video[:, :5].detach().numpy(), g, atol=1e-5)
    attended = memory.values[0, ends_of_chunks(memory)[0]].detach().numpy()
    np.testing.assert_allclose(attended, np.concatenate(upper) @ w["value.weight"].T + w["value.bias"], atol=1e-5)
    several, counts = features(clips=3, picks=10), (10, 8, 3)
    whole = encoder(several, torch.tensor(counts))
    assert ends_of_chunks(whole).sum(1).tolist() == [2, 1, 1]
    for clip, count in enumerate(counts):
        ((_, *cells),) = one_by_one(encoder, several[clip : clip + 1, :count])
        read = Memory(whole.video[:1], *(part[None] for part in cells))
        ends = ends_of_chunks(read)[0]
        assert ends.nonzero().flatten().tolist() == {10: [7, 9], 8: [7], 3: [2]}[count]
        torch.testing.assert_close(read.values[0, ends], whole.values[clip, ends_of_chunks(whole)[clip]])


def test_ba_sends_its_state_up_at_a_boundary_and_starts_anew():
    encoder, _ = built("ba")
    frames = features(clips=1, picks=5)
    w, nothing = arrays(encoder), np.zeros((1, 5))
    encoder.decide.weight.data *= 30  # so that there are clear boundaries
    v_s, boundaries = 30 * w["decide.weight"], []
    seen = frames[0, :, 0].double().numpy() @ w["embed.weight"].T + w["embed.bias"]
    h, c, upper = nothing, nothing, (nothing, nothing)
    for number, x in enumerate(seen):
        score = (x @ w["from_frame.weight"].T + w["from_frame.bias"] + h @ w["from_state.weight"].T) @ v_s.T
        if number and sigmoid(score).item() > 0.5:
            boundaries.append(number)
            upper = lstm(w, "upper", h, *upper)
            h, c = nothing, nothing
        h, c = lstm(w, "lower", x[None], h, c)
    video, _ = lstm(w, "upper", h, *upper)
    assert 0 < len(boundaries) < 4
    found = encoder(frames, torch.tensor([5])).video[:, :5]
    np.testing.assert_allclose(found.detach().numpy(), video, atol=1e-5)


def test_the_gradient_of_a_boundary_is_that_of_its_probability():
    encoder, _ = built("ba")
    seen, h = torch.randn(4, 6), torch.randn(4, 5)
    (gradient,) = torch.autograd.grad(encoder.boundary(seen, h).sum(), encoder.decide.weight)
    probability = torch.sigmoid(encoder.decide(encoder.from_frame(seen) + encoder.from_state(h)))
    (expected,) = torch.autograd.grad(probability.sum(), encoder.decide.weight)
    torch.testing.assert_close(gradient, expected)
    assert set(encoder.boundary(seen, h).flatten().tolist()) <= {0.0, 1.0}
    encoder.train()  # the threshold is drawn: each frame is a boundary as often as its probability says
    share = torch.stack([encoder.boundary(seen, h) for _ in range(2000)]).mean(0)
    torch.testing.assert_close(share, probability, atol=0.05, rtol=0)


def test_the_divergence_of_two_gaussians():
    # KL(N(1, 2²) ‖ N(0, 1)) = ½ (4 + 1 − 1 − log 4) in each dimension
    one = torch.ones(1, 2), torch.full((1, 2), 2.0).log()
    other = torch.zeros(1, 2), torch.zeros(1, 2)
    torch.testing.assert_close(divergence(one, other), torch.tensor([4 - np.log(4)]).float())
    assert divergence(one, one).item() == 0


def test_ms_rnn_writes_one_likely_caption_and_draws_several():
    encoder, decoder = built("ms-rnn")
    with torch.no_grad():
        decoder.output.weight *= 20
    memory = encoder(features(clips=1), torch.tensor([4]))
    alike = {tuple(decoder.write(memory, max_words=6)[0].tolist()) for _ in range(5)}
    with decoder.several():
        others = {tuple(decoder.write(memory, max_words=6)[0].tolist()) for _ in range(20)}
    assert len(alike) == 1
    assert len(others) > 3


def test_candidates_are_those_of_a_beam_search_with_their_probabilities():
    encoder, decoder = built("mean")
    with torch.no_grad():
        decoder.output.weight *= 10
    memory = encoder(features(clips=2), torch.tensor([4, 4]))
    settings = {"max_words": 3, "first_words": None, "never_written": NEVER_WRITTEN}
    words, totals = beam_candidates(decoder, memory, beam=4, **settings)
    assert words.shape == (2, 4, 4)
    for clip in range(2):
        sentences = [[word for word in row if word != PAD] for row in words[clip].tolist()]
        assert len({tuple(sentence) for sentence in sentences}) == 4
        alone = Memory(*(part[clip : clip + 1] for part in memory))
        for sentence, total in zip(sentences, totals[clip], strict=True):
            scores = decoder(alone, torch.tensor([[BOS, *sentence[:-1]]])).log_softmax(-1)[0]
            expected = scores[torch.arange(len(sentence)), sentence].sum()
            torch.testing.assert_close(total, expected)
            assert sentence[-1] == EOS
    likeliest = decoder.write(memory, max_words=3)
    single, _ = beam_candidates(decoder, memory, beam=1, **settings)
    assert single[:, 0, : likeliest.shape[1]].tolist() == likeliest.tolist()


def test_ruc_uva_chooses_the_sentence_that_is_likely_and_similar(monkeypatch):
    encoder, decoder = built("ruc-uva")
    memory = encoder(features(clips=1), torch.tensor([4]))
    written = torch.tensor([[[4, EOS], [5, EOS], [6, EOS]]])
    likely = torch.tensor([[-1.0, -1.1, -9.0]])
    monkeypatch.setattr(ruc_uva, "beam_candidates", lambda *_, **__: (written, likely))
    monkeypatch.setattr(decoder, "similarity", lambda *_: torch.tensor([[0.1, 0.9, 0.95]]))
    # Standardised: likely 0.72, 0.69, −1.41, of a word as of the sentence; similar −1.41, 0.64, 0.77
    assert decoder.write(memory, max_words=2).tolist() == [[5, EOS]]
    scores = ruc_uva.standardised(torch.tensor([[1.0, 3.0, -torch.inf]]))
    assert scores.tolist() == [[-1.0, 1.0, -torch.inf]]


def test_ruc_uvas_tags_are_the_words_of_captions():
    encoder, decoder = built("ruc-uva")
    assert bag_of_words(torch.tensor([BOS, 4, 4, UNK, 7, EOS, PAD]), WORDS).tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    memory = encoder(features(clips=1), torch.tensor([4]))
    torch.testing.assert_close(memory.video[0], features(clips=1)[0, :, 0].mean(0))
    # Tags go in, but the likelihood of words does not teach them.
    loss = decoder(memory, torch.tensor([[BOS, 4]])).log_softmax(-1).sum()
    assert torch.autograd.grad(loss, decoder.tags[0].weight, allow_unused=True) == (None,)


def test_aaltos_evaluator_chooses_among_the_sentences_of_its_captioners(monkeypatch):
    encoder, decoder = built("aalto")
    frames = features(clips=1)
    memory = encoder(frames, torch.tensor([4]))
    x = frames[0, :, 0]
    expected = torch.cat([x.mean(0), x.diff(dim=0).abs().mean(0), x[-1]])
    torch.testing.assert_close(memory.video[0], expected)
    assert [(each.first, each.always) for each in decoder.captioners] == [(0, 0), (0, 1), (1, 0)]
    sentences = [WordDecoder.write(each, memory, max_words=4) for each in decoder.captioners]
    for best in range(3):
        scores = iter([torch.tensor([float(number == best)]) for number in range(3)])
        monkeypatch.setattr(decoder.evaluator, "forward", lambda *_, scores=scores: next(scores))
        chosen = decoder.write(memory, max_words=4)[0].tolist()
        assert [word for word in chosen if word] == [word for word in sentences[best][0].tolist() if word]


@pytest.mark.parametrize("system", SYSTEMS_WITHOUT_GRAPHS)
def test_the_model_of_a_system_without_graphs_says_why(system, tmp_path):
    (tmp_path / "config.toml").write_text(f"[model]\nsystem = '{system}'\n")
    with pytest.raises(BadModel, match=f"its system, {system}, {SYSTEMS_WITHOUT_GRAPHS[system]}, which graphs cannot"):
        ModelFolder(tmp_path)


def test_settings_know_every_system():
    assert set(typing.get_args(SystemName)) == {"picknet", *SYSTEMS}


def test_densecap_chooses_regions_that_tell_something_new_and_follow_each_other():
    # Two frames of two regions, three words. Frame 1: region 0 shows word 0, region 1 words 1 and 2.
    shown = torch.tensor([[[[0.9, 0.0, 0.0], [0.0, 0.9, 0.9]], [[0.0, 0.9, 0.9], [0.9, 0.0, 0.0]]]])
    same = torch.ones(1, 2, 2, 4)
    assert region_sequences(same, shown, 1)[0].tolist() == [[1, 1]]  # two words, then the one not covered
    assert region_sequences(same, shown.flip(2), 1)[0].tolist() == [[0, 0]]
    # If nothing is gained, the region that is like the one before.
    features = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]])
    equal = torch.full((1, 2, 2, 3), 0.5)
    assert region_sequences(features, equal, 1)[0].tolist() == [[0, 1]]


def test_densecaps_later_sequences_differ_from_the_first():
    shown = torch.zeros(1, 3, 2, 4)
    shown[:, :, 0, :3] = 0.8  # one region of each frame tells three words, the other one
    shown[:, :, 1, 3] = 0.8
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).expand(1, 3, 2, 2)
    first, second = region_sequences(features, shown, 2)
    assert (first.tolist(), second.tolist()) == ([[0, 0, 0]], [[1, 1, 1]])


def test_densecap_learns_words_of_videos_and_the_sequence_that_shows_a_caption_takes_it_all():
    encoder, decoder = built("densecap")
    frames = torch.randn(2, 3, 4, FEATURES, generator=torch.Generator().manual_seed(2))
    memory = encoder(frames, torch.tensor([3, 2]))
    videos, shown, shows_none = decoder._sequences(memory)
    w = arrays(encoder)
    p = sigmoid(frames.double().numpy() @ w["lexicon.weight"].T + w["lexicon.bias"])
    expected = [np.log(1 - p[0]).sum((0, 1)), np.log(1 - p[1, :2]).sum((0, 1))]
    np.testing.assert_allclose(shows_none.detach().numpy(), expected, rtol=1e-4)
    # The caption of word 4, the first of the lexicon, teaches the sequence that shows it most, and no other.
    memory = memory._replace(video=memory.video.detach().requires_grad_())
    videos, shown, _ = decoder._sequences(memory)
    words = torch.tensor([[BOS, 4, EOS], [BOS, 4, EOS]])
    loss = decoder.loss(memory, words, feed_back=(), never_written=(), label_smoothing=0.0)
    (gradient,) = torch.autograd.grad(loss, memory.video)
    taught = gradient[:, : videos[0].numel()].unflatten(1, videos.shape[1:]).abs().sum(-1) > 0
    assert taught.sum(1).tolist() == [1, 1]
    assert taught.int().argmax(1).tolist() == shown[..., 0].argmax(1).tolist()
    assert len(decoder.dense(memory, max_words=4)) == videos.shape[1]


@pytest.mark.parametrize("system", ["p-rnn", "hrne"])
def test_the_graphs_of_a_system_compute_what_the_network_does(system, tmp_path):
    """Its two graphs alone: to export the CNN with each takes long."""
    import onnx
    from safetensors.torch import save_file

    from picknet.model.graphs import _core, _read
    from picknet.training import export

    network = torch.nn.ModuleDict(dict(zip(("encoder", "decoder"), built(system), strict=True)))
    network.encoder, network.decoder = network["encoder"], network["decoder"]
    weights, shared = tmp_path / "weights.safetensors", export._shared(network)
    save_file({name: weight.clone() for name, weight in network.state_dict().items() if name not in shared}, weights)
    inputs = {
        "features": torch.randn(2, 1, FEATURES),
        "h": torch.zeros(2, network.encoder.size),
        "c": torch.zeros(2, network.encoder.size),
        "words": torch.tensor([BOS, 5]),
        "video": torch.zeros(1, network.encoder.size),
        "keys": torch.zeros(1, 3, 6),
        "values": torch.zeros(1, 3, 6),
        "state": torch.zeros(2, network.decoder.size),
    }
    compiled = {}
    for name, graph in {"encoder": export._EncoderGraph(network), "decoder": export._DecoderGraph(network)}.items():
        path = tmp_path / f"{name}.onnx"
        model = export._traced(graph.eval(), {key: inputs[key] for key in graph.inputs})
        export._point_into(model, weights, shared)
        onnx.save(model, path)
        compiled[name] = _core().compile_model(_read(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(name, **given):
        return list(compiled[name]({key: np.asarray(array) for key, array in given.items()}).values())

    frames = features(clips=3)
    expected = network.encoder(frames, torch.tensor([4, 4, 4]))
    state, kept = [np.zeros((3, network.encoder.size), np.float32)] * 2, []
    for frame in frames.unbind(1):
        *state, keys, values = (*run("encoder", features=frame, h=state[0], c=state[1]), None, None)[:4]
        kept.append((keys, values))
    begin = network.decoder.begin
    np.testing.assert_allclose(begin(torch.from_numpy(state[0])).detach(), begin(expected.video).detach(), atol=1e-5)
    cells = {}
    if network.encoder.attended:
        keys, values = (np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True))
        cells = {"keys": keys, "values": values}
    for rows in (slice(0, 1), slice(0, 3)):  # one video for all sentences, and one for each
        words, written = np.array([BOS, BOS, BOS]), np.zeros((3, network.decoder.size), np.float32)
        theirs, memory = torch.zeros(3, network.decoder.size), [part[rows] for part in expected[:3]]
        for _ in range(2):
            given = {"video": state[0][rows], **{key: part[rows] for key, part in cells.items()}, "state": written}
            log_probabilities, written = run("decoder", words=words, **given)
            with torch.no_grad():
                wanted, theirs = network.decoder.step(torch.from_numpy(words), *memory, theirs)
            np.testing.assert_allclose(log_probabilities, wanted, atol=1e-4)
            words = np.array([4, 5, 6])
