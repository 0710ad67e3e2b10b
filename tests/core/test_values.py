"""The small values that parts exchange: what they derive."""

from baton.core.batch import Batch, Row
from baton.core.cost import Estimate
from baton.core.load import Role
from baton.core.model import Fingerprint
from baton.core.request import SamplingParams


def row(start: int, tokens: int) -> Row:
    ids = list(range(tokens))
    return Row(
        seq=("r", 0),
        token_ids=ids,
        start=start,
        block_table=[1],
        sample=True,
        sampling=SamplingParams(),
        history=ids,
        prompt_len=tokens,
    )


def test_a_row_knows_its_length_and_context() -> None:
    assert (row(8, 3).length, row(8, 3).context) == (3, 11)


def test_a_batch_counts_tokens_and_is_false_when_empty() -> None:
    assert Batch((row(0, 3), row(5, 1))).tokens == 4
    assert Batch((row(0, 1),))
    assert not Batch(())
    assert not Batch((), clear=(1,)), "clearing alone is no work for the model"


def test_an_estimate_is_never_negative() -> None:
    assert Estimate(1.0, 0.5).quantile_s(2.0) == 2.0
    assert Estimate(1.0, 2.0).quantile_s(-1.0) == 0.0


def test_roles_say_what_they_do() -> None:
    assert [(role.prefills, role.decodes) for role in (Role.PREFILL, Role.DECODE, Role.BOTH)] == [
        (True, False),
        (False, True),
        (True, True),
    ]


def test_a_fingerprint_names_what_differs() -> None:
    one = Fingerprint("1", "llama", "w1", "t", "g", "auto", "float32", "native")
    assert one.differing(one) == []
    other = Fingerprint("1", "llama", "w2", "t", "h", "int8", "float32", "torch")
    assert one.differing(other) == [
        "weights (w1 against w2)",
        "geometry (g against h)",
        "quantization (auto against int8)",
        "kernels (native against torch)",
    ]
