"""Errors: their text, their code, and the way back from a code."""

import pytest

from baton.core import errors
from baton.core.blocks import OutOfBlocks
from baton.core.errors import BatonError, Code, error_for


def test_text_names_the_field() -> None:
    assert str(errors.InvalidArgument("must be positive", field="top_k")) == "top_k: must be positive"
    assert str(errors.NotFound("no model x")) == "no model x"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.INVALID_ARGUMENT, errors.InvalidArgument),
        (Code.NOT_FOUND, errors.NotFound),
        (Code.FAILED_PRECONDITION, errors.FailedPrecondition),
        (Code.RESOURCE_EXHAUSTED, errors.ResourceExhausted),
        (Code.UNAVAILABLE, errors.Unavailable),
        (Code.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (Code.CANCELLED, errors.Cancelled),
        (Code.INTERNAL, errors.InternalError),
        (Code.UNIMPLEMENTED, errors.Unimplemented),
        (Code.UNAUTHENTICATED, errors.Unauthenticated),
        (Code.PERMISSION_DENIED, errors.PermissionDenied),
    ],
)
def test_a_code_turns_back_into_its_error(code: Code, kind: type[BatonError]) -> None:
    error = error_for(code, "why", field="f", retry_after_s=1.5)
    assert type(error) is kind
    assert (error.code, error.message, error.field, error.retry_after_s) == (code, "why", "f", 1.5)


def test_no_code_is_lost_on_its_way() -> None:
    assert all(error_for(code, "why").code is code for code in Code)


def test_running_out_of_blocks_and_illegal_moves_are_our_own_errors() -> None:
    assert issubclass(OutOfBlocks, BatonError)
    assert errors.IllegalTransition("no").code is Code.INTERNAL
