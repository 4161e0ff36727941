"""Name, for each upstream test about schemas, services and code generation, the test that is ours.

Keys are ``file > name`` of the TypeScript package and ``python: name`` of the Python package.
Values are ``module::test`` in this directory. Where the upstream test needs a server, ours is the
part that has none: what is looked up, checked or written.
"""

from __future__ import annotations

SCHEMA, SERVICES, SERVED, CODEGEN = "test_schema", "test_services", "test_served", "test_codegen"

OURS = {
    "serialize > serialize entire service schema": (
        f"{SERVED}::test_the_whole_server_with_its_handshake"
    ),
    "serialize > serialize basic service": f"{SERVED}::test_the_whole_server_with_its_handshake",
    "serialize > serialize service with binary": f"{SERVED}::test_a_service_with_binary",
    "serialize > serialize service with errors": f"{SERVED}::test_a_service_with_errors",
    "serialize > serialize backwards compatible with v1": (
        f"{SERVED}::test_the_form_of_protocol_v1"
    ),
    "invalid-request > bad request message": (
        f"{SCHEMA}::test_a_missing_field_is_told_as_river_does"
    ),
    "invalid-request > service does not exist": (
        f"{SERVICES}::test_names_nobody_defined_are_not_found"
    ),
    "invalid-request > procedure does not exist": (
        f"{SERVICES}::test_names_nobody_defined_are_not_found"
    ),
    "e2e > rpc with binary (uint8array)": f"{SCHEMA}::test_a_keyword_accepts_and_refuses",
    "e2e > fallible rpc": f"{SERVICES}::test_a_handler_may_answer_with_declared_errors_only",
    "e2e > works with non-object schemas": f"{SCHEMA}::test_a_schema_may_refer_to_itself",
    "e2e > calls service dispose methods on cleanup": (
        f"{SERVICES}::test_a_state_may_be_disposed_of"
    ),
    "context > should pass extended context to initializeState": (
        f"{SERVICES}::test_a_state_is_a_value_or_made_from_the_context"
    ),
    "typescript-stress > object": f"{SERVICES}::test_errors_may_be_objects_and_flat_unions",
    "typescript-stress > union of object": (
        f"{SERVICES}::test_errors_may_be_objects_and_flat_unions"
    ),
    "typescript-stress > object with enum code": (
        f"{SERVICES}::test_errors_may_be_objects_and_flat_unions"
    ),
    "typescript-stress > union containing enum-based error schemas": (
        f"{SERVICES}::test_errors_may_be_objects_and_flat_unions"
    ),
    "typescript-stress > flattenErrorType with enum-based error schemas": (
        f"{SERVICES}::test_nested_unions_are_flattened_by_a_helper"
    ),
    "typescript-stress > union of union": (
        f"{SERVICES}::test_nested_unions_are_flattened_by_a_helper"
    ),
    "typescript-stress > union of object and union": (
        f"{SERVICES}::test_nested_unions_are_flattened_by_a_helper"
    ),
    "typescript-stress > deeeeep nesting": (
        f"{SERVICES}::test_nested_unions_are_flattened_by_a_helper"
    ),
    "typescript-stress > mixed bag": f"{SERVICES}::test_nested_unions_are_flattened_by_a_helper",
    "typescript-stress > spreading a flattened union into another union": (
        f"{SERVICES}::test_nested_unions_are_flattened_by_a_helper"
    ),
    "typescript-stress > fails when object has an invalid error shape": (
        f"{SERVICES}::test_other_error_schemas_are_refused"
    ),
    "typescript-stress > fails on nested union without helper": (
        f"{SERVICES}::test_nested_unions_are_flattened_by_a_helper"
    ),
    "typescript-stress > service with many procedures hits typescript limit": (
        f"{CODEGEN}::test_mypy_is_strict_and_content"
    ),
    "python: test_basic_rpc": f"{CODEGEN}::test_mypy_knows_the_types_of_calls",
    "python: test_basic_stream": f"{CODEGEN}::test_a_module_from_head_to_foot",
    "python: test_anyof_mixed_types": f"{CODEGEN}::test_a_schema_as_a_type",
    "python: test_pathological_types": f"{CODEGEN}::test_a_schema_as_a_type",
    "python: test_recursive_types": f"{CODEGEN}::test_recursive_types",
    "python: test_unknown_enum": f"{CODEGEN}::test_branches_are_named_after_what_tells_them_apart",
    "python: test_input_special_chars_typeddict": (f"{CODEGEN}::test_typed_dicts_with_any_names"),
    "python: test_input_special_chars_basemodel": f"{CODEGEN}::test_dataclasses_with_any_names",
    "python: test_init_special_chars_typeddict": f"{CODEGEN}::test_typed_dicts_with_any_names",
    "python: test_init_special_chars_basemodel": f"{CODEGEN}::test_dataclasses_with_any_names",
    # Upstream refuses what we number.
    "python: test_input_collision_error_typeddict": f"{CODEGEN}::test_typed_dicts_with_any_names",
    "python: test_input_collision_error_basemodel": f"{CODEGEN}::test_dataclasses_with_any_names",
    "python: test_field_name_collision_error": f"{CODEGEN}::test_dataclasses_with_any_names",
    "python: parity of encoders": "test_records::test_what_was_read_is_written_as_it_came",
}
