"""Coreference: entities of CoNLL-U, and antecedents against plain NumPy on whole matrices."""

import collections

import numpy as np
import pytest

import attention_cpp
import reference
from attention_cpp import Document, HeadCoreference, Mention, read_coreference
from test_attention import draw
from test_heads import D, H, HK, OPTIONS, layer_of


def line(number, form, upos, head, entity="", name="_"):
    misc = f"SpaceAfter=No|Entity={entity}" if entity else name
    return f"{number}\t{form}\t_\t{upos}\t_\t_\t{head}\tdep\t_\t{misc}\n"


# "The old sailor saw his sister. She picked nets up for him.": nesting, two parts, an empty node, numbered heads.
CONLLU = "".join([
    "# global.Entity = eid-etype-head-other\n# newdoc id = one\n",
    line(1, "The", "DET", 3, "(e1-person-3-"), line(2, "old", "ADJ", 3), line(3, "sailor", "NOUN", 4, "e1)"),
    line(4, "saw", "VERB", 0), line(5, "his", "PRON", 6, "(e2-person--(e1-person-1-)"),
    line(6, "sister", "NOUN", 4, "e2)"), "\n",
    line(1, "She", "PRON", 2, "(e2-person-1)"), line(2, "picked", "VERB", 0, "(e3[1/2]-event-2)"),
    "2.1\tit\t_\tPRON\t_\t_\t_\t_\t2:dep\tEntity=(e1-person-1)\n", line(3, "nets", "NOUN", 2, "(e4-thing-1)"),
    line(4, "up", "ADV", 2, "(e3[2/2]-event-2)"), line(5, "for", "ADP", 6), line(6, "him", "PRON", 2, "(e1)"), "\n",
    "# newdoc\n", line(1, "He", "PRON", 2, "(e1)"), line(2, "waits", "VERB", 0), "\n",
])
# Tokens of the first document's words, [CLS] before and [SEP] after.
WORD_OF = [-1, 0, 1, 2, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, -1]


def test_coreference_documents_are_read():
    first, second = read_coreference(CONLLU)
    assert first.words[:6] == ["The", "old", "sailor", "saw", "his", "sister"] and first.ends == [6, 12]
    assert sorted(first.mentions) == [
        Mention(2, "e1", "NOUN"),   # the third word, as the file says
        Mention(4, "e1", "PRON"), Mention(5, "e2", "NOUN"),  # the word whose HEAD is outside
        Mention(6, "e2", "PRON"), Mention(8, "e4", "NOUN"), Mention(9, "e3", "ADV"),  # the second word of two parts
        Mention(11, "e1", "PRON")]  # what is not written is no mention
    assert second == Document(["He", "waits"], [2], [Mention(0, "e1", "PRON")])
    unnamed = read_coreference(CONLLU.replace("# global.Entity = eid-etype-head-other\n", ""))
    assert unnamed[0] == first, "these are the usual fields"
    other = read_coreference(CONLLU.replace("eid-etype-head-other", "eid-etype-other"))
    assert Mention(2, "e1", "NOUN") in other[0].mentions and Mention(7, "e3", "VERB") in other[0].mentions


@pytest.mark.parametrize("wrong, said", [
    ("", "here has no sentence"),
    (CONLLU.replace("e1)\n", "_\n", 1), "here:3: mention 'e1' is not closed"),
    (CONLLU.replace("Entity=e1)", "Entity=e9)"), "here:5: mention 'e9' was not opened"),
    (CONLLU.replace("(e1-person-3-", "(e1-person-4-"),
     "here:5: the head of mention 'e1' is 4, must be at most 3, its number of words"),
    (CONLLU.replace("(e1-person-3-", "(e1-person-x-"), "here:3: the head of a mention is 'x'"),
    (CONLLU.replace("(e1-person-3-", "(e1-person-0-"), "here:3: the head of a mention is '0'"),
    (CONLLU.replace("(e3[1/2]-event-2)", ""), "here:14: a mention must not begin with a later part than its first"),
    (CONLLU.replace("(e3[2/2]-event-2)", ""), "here:10: mention 'e3' lacks some of its parts"),
    (CONLLU.replace("e3[1/2]", "e3[3/2]"), "here:11: the part of a mention is 'e3[3/2]', must be as in e1[1/2]"),
    (CONLLU.replace("e3[1/2]", "e3["), "here:11: the part of a mention is 'e3[', must be as in e1[1/2]"),
    (CONLLU.replace("(e1)", "()", 1), "here:16: an entity has no name"),
    (CONLLU.replace("(e1)", "e1", 1), "here:16: Entity has 'e1'"),
])
def test_wrong_coreference_raises_the_line_and_the_reason(wrong, said):
    with pytest.raises(attention_cpp.Error, match="conllu") as error:
        read_coreference(wrong, "here")
    assert said in str(error.value)


def words_matrix(p, words, word_of):
    """[heads, words, words]: the sum over the tokens of a word that is looked at, the mean over those that look."""
    member = np.array([[word == token for token in word_of] for word in range(words)], float)
    return member / member.sum(1, keepdims=True) @ p @ member.T


def anaphors_of(mentions):
    """(word, upos, governors of the antecedents, governors of the nearest mentions before)."""
    found = []
    for word, entity, upos in sorted(mentions):
        before = {other.word for other in mentions if other.entity == entity and other.word < word}
        nearest = max((other.word for other in mentions if other.word < word), default=None)
        if before:
            found.append((word, upos, before, nearest))
    return found


@pytest.mark.parametrize("name", ["plain", "causal", "window"])
def test_kinds_are_those_of_the_reference(name):
    documents, counts = [read_coreference(CONLLU)[0]], HeadCoreference()
    # A second text whose mentions share governors: "he" is of two entities.
    documents.append(documents[0]._replace(mentions=[Mention(1, "a", "NOUN"), Mention(3, "b", "PRON"),
                                                     Mention(3, "a", "PRON"), Mention(3, "a", "PRON"),
                                                     Mention(8, "b", "NOUN"), Mention(10, "c", "X")]))
    hits, kinds, nearest, offsets = [], [], [], []
    for number, document in enumerate(documents):
        layers = [(draw(1, H, len(WORD_OF), D, seed=10 * number + n),
                   draw(1, HK, len(WORD_OF), D, seed=20 + number + n), OPTIONS[name]) for n in range(2)]
        counts.add([layer_of(*layer) for layer in layers], document, WORD_OF)
        matrix = np.concatenate([words_matrix(reference.weights(q, k, **options)[0][0], len(document.words), WORD_OF)
                                 for q, k, options in layers])
        matrix[:, range(len(document.words)), range(len(document.words))] = -1
        for word, upos, before, near in anaphors_of(set(document.mentions)):
            hits.append([row.max() > 0 and row.argmax() in before for row in matrix[:, word]])
            kinds.append(upos)
            nearest.append(near in before)
            offsets.append({other - word for other in before})
    hits = np.array(hits)
    assert hits.any() and not hits.all()
    found = counts.kinds()
    assert list(found) == ["all", "PRON", "NOUN"] and [kind.mentions for kind in found.values()] == [5, 4, 1]
    for kind, values in found.items():
        which = np.array([kind in ("all", one) for one in kinds])
        np.testing.assert_array_equal(values.to_antecedent, hits[which].mean(0))
        assert values.nearest == np.mean(np.array(nearest)[which])
        commonest = collections.Counter(offset for one, mine in zip(offsets, which) if mine for offset in one)
        assert values.baseline == max(commonest.values()) / which.sum()
        assert commonest[values.offset] == max(commonest.values())


def test_antecedents_that_are_wrong():
    document, counts = read_coreference(CONLLU)[0], HeadCoreference()
    layer = layer_of(draw(1, H, 16, D), draw(1, HK, 16, D, seed=1), {})
    error = attention_cpp.Error
    with pytest.raises(error, match="no mention with an antecedent was added"):
        counts.kinds()
    with pytest.raises(error, match="word_of has 15 elements, must have one for each of 16 tokens"):
        counts.add([layer], document, WORD_OF[1:])
    with pytest.raises(error, match="a mention's governor is word 12, must be in \\[0, 12\\)"):
        counts.add([layer], document._replace(mentions=[Mention(12, "e1", "X")]), WORD_OF)
    counts.add([layer], document, WORD_OF)
    with pytest.raises(error, match="must have as many heads as in the documents before"):
        counts.add([layer, layer], document, WORD_OF)
