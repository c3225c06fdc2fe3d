"""Dependency arcs, and gradients times attention: against plain NumPy on whole matrices."""

import collections

import numpy as np
import pytest

import attention_cpp
import reference
from attention_cpp import HeadSyntax, Sentence, read_conllu
from test_attention import draw
from test_heads import D, EXACT, H, HK, OPTIONS, layer_of

CONLLU = """# sent_id = 1
# text = The old sailor didn't mend nets.
1	The	the	DET	_	_	3	det	_	_
2	old	old	ADJ	_	_	3	amod	_	_
3	sailor	sailor	NOUN	_	_	6	nsubj	_	_
4-5	didn't	_	_	_	_	_	_	_	_
4	did	do	AUX	_	_	6	aux	_	_
5	n't	not	PART	_	_	6	advmod	_	_
6	mend	mend	VERB	_	_	0	root	_	_
7	nets	net	NOUN	_	_	6	obj	_	_
7.1	_	_	_	_	_	_	_	_	_
8	.	.	PUNCT	_	_	6	punct	_	_

1	A	a	DET	_	_	2	det	_	_
2	gull	gull	NOUN	_	_	3	nsubj	_	_
3	waits	wait	VERB	_	_	0	root	_	_
"""
# Tokens of words, [CLS] before and [SEP] after: some words are of two or three.
WORD_OF = [[-1, 0, 1, 1, 2, 3, 4, 4, 4, 5, 6, 6, 7, -1], [-1, 0, 1, 1, 2, -1]]


def test_conllu_sentences_are_read():
    first, second = read_conllu(CONLLU.replace("\n", "\r\n"))
    assert first.words == ["The", "old", "sailor", "did", "n't", "mend", "nets", "."]
    assert first.governors == [2, 2, 5, 5, 5, -1, 5, 5] and first.relations[:3] == ["det", "amod", "nsubj"]
    assert second == Sentence(["A", "gull", "waits"], [1, 2, -1], ["det", "nsubj", "root"])
    assert len(read_conllu(CONLLU.rstrip("\n"))) == 2


@pytest.mark.parametrize("wrong, said", [
    ("", "here has no sentence"),
    ("1\tA\n", "here:1: the line has 2 columns, must have 10 with tabs between them"),
    (CONLLU.replace("2\tgull", "3\tgull"), "here:15: the ID is '3', must be 2"),
    (CONLLU.replace("4-5", "4-x"), "here:6: the ID is '4-x', must be a number, a range"),
    (CONLLU.replace("3\tnsubj", "9\tnsubj"), "here:15: HEAD is 9, must be at most 3, the number of words"),
    (CONLLU.replace("3\tnsubj", "2\tnsubj"), "here:15: the word is its own HEAD"),
    (CONLLU.replace("3\tnsubj", "_\tnsubj"), "here:15: HEAD is '_', must be the ID of a word, or 0"),
    (CONLLU.replace("3\tnsubj", "-1\tnsubj"), "here:15: HEAD is '-1', must be"),
    (CONLLU.replace("\tgull\t", "\t\t"), "here:15: FORM is missing"),
    (CONLLU.replace("obj", "_"), "here:10: DEPREL is missing"),
])
def test_wrong_conllu_raises_the_line_and_the_reason(wrong, said):
    with pytest.raises(attention_cpp.Error, match="conllu") as error:
        read_conllu(wrong, "here")
    assert said in str(error.value)


def test_all_lines_that_are_wrong():
    with pytest.raises(attention_cpp.Error) as error:
        read_conllu("1\tA\n" * 30, "here")
    assert str(error.value).count("here:") == 20 and str(error.value).endswith("and more")


def hits_of(p, sentence, word_of):
    """[heads, 2, arcs]: whether the other word of largest weight is the governor, by the dependent's row and column."""
    words = len(sentence.words)
    member = np.array([[word == token for token in word_of] for word in range(words)], float)
    between = member / member.sum(1, keepdims=True) @ p @ member.T
    between[:, range(words), range(words)] = -1
    arcs = [(word, governor) for word, governor in enumerate(sentence.governors) if governor >= 0]
    return np.array([[[row.max() > 0 and row.argmax() == governor for word, governor in arcs for row in [way[word]]]
                      for way in (matrix, matrix.T)] for matrix in between])


@pytest.mark.parametrize("name", ["plain", "causal", "window"])
def test_relations_are_those_of_the_reference(name):
    sentences, syntax = read_conllu(CONLLU), HeadSyntax()
    hits, names, offsets = [], [], []
    for number, (sentence, word_of) in enumerate(zip(sentences, WORD_OF)):
        layers = [(draw(1, H, len(word_of), D, seed=10 * number + n),
                   draw(1, HK, len(word_of), D, seed=20 + number + n), OPTIONS[name]) for n in range(2)]
        syntax.add([layer_of(*layer) for layer in layers], sentence, word_of)
        hits.append(np.concatenate([hits_of(reference.weights(q, k, **options)[0][0], sentence, word_of)
                                    for q, k, options in layers]))
        arcs = [word for word, governor in enumerate(sentence.governors) if governor >= 0]
        names += [sentence.relations[word] for word in arcs]
        offsets += [sentence.governors[word] - word for word in arcs]
    hits = np.concatenate(hits, -1)
    found = syntax.relations()
    assert list(found)[:3] == ["all", "det", "nsubj"] and set(found) == {"all", *names}
    for relation, values in found.items():
        which = [relation in ("all", one) for one in names]
        assert values.arcs == sum(which)
        commonest = collections.Counter(np.array(offsets)[which].tolist())
        assert values.baseline == max(commonest.values()) / sum(which)
        assert commonest[values.offset] == max(commonest.values())
        np.testing.assert_array_equal(values.to_governor, hits[:, 0, which].mean(-1))
        np.testing.assert_array_equal(values.to_dependent, hits[:, 1, which].mean(-1))


def test_arcs_that_are_wrong():
    sentence = read_conllu(CONLLU)[1]
    layer = layer_of(draw(1, H, 6, D), draw(1, HK, 6, D, seed=1), {})
    error, syntax = attention_cpp.Error, HeadSyntax()
    with pytest.raises(error, match="no sentence with an arc was added"):
        syntax.relations()
    with pytest.raises(error, match="word_of has 5 elements, must have one for each of 6 tokens"):
        syntax.add([layer], sentence, WORD_OF[1][1:])
    with pytest.raises(error, match=r"word_of\[4\] is 3, must be in \[-1, 3\)"):
        syntax.add([layer], sentence, [-1, 0, 1, 1, 3, -1])
    with pytest.raises(error, match="word 2 has no token"):
        syntax.add([layer], sentence, [-1, 0, 1, 1, 1, -1])
    with pytest.raises(error, match="the governor of word 1 is 1, must be another word, or -1"):
        syntax.add([layer], sentence._replace(governors=[1, 1, -1]), WORD_OF[1])
    with pytest.raises(error, match="a governor and a relation for each word"):
        syntax.add([layer], sentence._replace(governors=[1]), WORD_OF[1])


@pytest.mark.parametrize("name", ["plain", "causal", "bias", "sink"])
def test_gradient_times_attention(name):
    """Against P * (dO V^T) whole; the sum of a head is that of <dout, out>."""
    B, n = 2, 11
    q, k, v, dout = (draw(B, heads, n, D, seed=seed) for seed, heads in enumerate((H, HK, HK, H)))
    options = OPTIONS[name]
    out, lse = attention_cpp.attention(q, k, v, return_lse=True, **options)
    p = reference.weights(q, k, **options)[0]
    expected = p * np.einsum("bhid,bhjd->bhij", dout, np.repeat(v, H // HK, 1))
    found = attention_cpp.gradient_times_attention(q, k, v, lse, dout, **options)
    np.testing.assert_allclose(found, expected, **EXACT[np.float64])
    part = attention_cpp.gradient_times_attention(q, k, v, lse, dout, range(2, 5), slice(1, 4), **options)
    np.testing.assert_array_equal(part, found[:, :, 2:5, 1:4])
    np.testing.assert_allclose(found.sum((-1, -2)), (dout * out).sum((-1, -2)), **EXACT[np.float64])
    with pytest.raises(attention_cpp.Error, match="dropout must be 0"):
        attention_cpp.gradient_times_attention(q, k, v, lse, dout, dropout=0.5)


def test_gradient_times_attention_of_one_head():
    q, k, v, dout = (draw(9, D, seed=seed) for seed in range(4))
    _, lse = attention_cpp.attention(q, k, v, return_lse=True)
    expected = reference.weights(q[None, None], k[None, None])[0][0, 0] * (dout @ v.T)
    found = attention_cpp.gradient_times_attention(q, k, v, lse, dout)
    np.testing.assert_allclose(found, expected, **EXACT[np.float64])


def test_gradient_times_attention_is_that_of_torch_autograd():
    torch = pytest.importorskip("torch")
    q, k, v, dout = (torch.from_numpy(draw(1, heads, 9, D, seed=seed)) for seed, heads in enumerate((H, HK, HK, H)))
    _, lse = attention_cpp.attention(q, k, v, return_lse=True)
    shared = [x.repeat_interleave(H // HK, 1) for x in (k, v)]
    p = torch.softmax(q @ shared[0].mT / D**0.5, -1).requires_grad_()
    ((p @ shared[1]) * dout).sum().backward()
    found = attention_cpp.gradient_times_attention(q, k, v, lse, dout)
    torch.testing.assert_close(found, (p * p.grad).detach(), rtol=0, atol=EXACT[np.float64]["atol"])
