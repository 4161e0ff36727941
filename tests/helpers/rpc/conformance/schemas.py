"""Cases about schemas and types: what is served of a server, and what clients know of it."""

from __future__ import annotations

from .shapes import Different, NotOurs, Ours

__all__ = ["DIFFERENT", "NOT_OURS", "OURS"]

_CODEGEN = "codegen/test_generator.py::"
_CONTEXT = "test_context.py::"
_PROXIES = "test_proxies.py::"
_RESULTS = "test_results.py::"
_SERVED = "schema/test_document.py::"
_SERVICES = "test_services.py::"

_LARGE = "ensure typescript doesn't give up trying to infer the types for large services"
_ERRORS = "Procedure error schema"
_TYPED = f"{_CODEGEN}test_mypy_knows_the_types_of_calls"
_OBJECTS = f"{_SERVICES}test_errors_may_be_objects_and_flat_unions"
_FLAT = f"{_SERVICES}test_nested_unions_are_flattened_by_a_helper"

OURS: Ours = {
    "serialize": {
        "serialize entire service schema": f"{_SERVED}test_the_whole_server_with_its_handshake",
        "serialize basic service": f"{_SERVED}test_the_whole_server_with_its_handshake",
        "serialize service with binary": f"{_SERVED}test_a_service_with_binary",
        "serialize service with errors": f"{_SERVED}test_a_service_with_errors",
        "serialize backwards compatible with v1": f"{_SERVED}test_the_form_of_protocol_v1",
    },
    "typescript-stress": {
        f"{_LARGE} > service with many procedures hits typescript limit": (
            f"{_CODEGEN}test_mypy_is_strict_and_content"
        ),
        f"{_LARGE} > server client should support many services with many procedures": (
            f"{_PROXIES}test_many_services_of_many_procedures"
        ),
        f"{_LARGE} > service with context should be able to access context in procedures": (
            f"{_CONTEXT}test_services_share_the_context_and_not_their_states"
        ),
        "ResponseData<> type > it unwraps rpc response data correctly": _TYPED,
        "ResponseData<> type > it unwraps stream response data correctly": _TYPED,
        "ResponseData<> type > it unwraps subscription response data correctly": _TYPED,
        "ResponseData<> type > it unwraps upload response data correctly": _TYPED,
        "ResultUwrap types > it unwraps Ok correctly": f"{_RESULTS}test_a_response_is_ok",
        "ResultUwrap types > it unwraps Err correctly": (
            f"{_RESULTS}test_a_declared_error_is_a_result"
        ),
        "Handshake > custom handhshake types should work": (
            "test_calls.py::test_metadata_is_validated_and_seen_by_handlers"
        ),
        f"{_ERRORS} > allowed > object": _OBJECTS,
        f"{_ERRORS} > allowed > union of object": _OBJECTS,
        f"{_ERRORS} > allowed > object with enum code": _OBJECTS,
        f"{_ERRORS} > allowed > union containing enum-based error schemas": _OBJECTS,
        f"{_ERRORS} > allowed > flattenErrorType with enum-based error schemas": _FLAT,
        f"{_ERRORS} > allowed > union of union": _FLAT,
        f"{_ERRORS} > allowed > union of object and union": _FLAT,
        f"{_ERRORS} > allowed > deeeeep nesting": _FLAT,
        f"{_ERRORS} > allowed > mixed bag, union of object, unions, "
        '"union of unions", and "union of union and object" (I think)': _FLAT,
        f"{_ERRORS} > allowed > spreading a flattened union into another union": _FLAT,
        f"{_ERRORS} > fails > fails when object has an invalid error shape": (
            f"{_SERVICES}test_other_error_schemas_are_refused"
        ),
        f"{_ERRORS} > fails > fails on nested union without helper": _FLAT,
        "Client proxy thenable safety > "
        "client proxy is not treated as a thenable by Promise resolution": (
            f"{_PROXIES}test_a_client_is_the_result_of_a_coroutine_that_returns_it"
        ),
        "Client proxy thenable safety > client.then is undefined": (
            f"{_PROXIES}test_a_client_is_nothing_but_a_client"
        ),
    },
}

DIFFERENT: Different = {}

NOT_OURS: NotOurs = {
    "typescript-stress": {
        "Readable types > should maintain result types": "skipped there too: types of TypeScript",
    },
}
