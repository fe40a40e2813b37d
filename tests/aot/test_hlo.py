"""The HLO parser: by hand for edge cases, on compiled programs for the rest."""

import time

import hlo_programs as programs
import jax
import jax.numpy as jnp
import pytest

from tpu_compile.aot import hlo, shapes
from tpu_compile.aot.instruction import DotDims

BY_HAND = r"""HloModule jit_f, is_scheduled=true, replica_count=2, num_partitions=4

FileNames
1 "/home/me/model.py"
2 "/x/say \"hi\".py"

FunctionNames
1 "forward"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=3 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}, execution_thread="side"

ENTRY %main.2 (p: (s32[], bf16[8,128])) -> (s32[], f32[8], s4[3]) {
  %p = (s32[]{:T(128)S(6)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %c = s32[3]{0} constant({1, 2, 3}), metadata={op_name="a)b\"(" source_file="/m.py" source_line=7}
  %t = (s32[], /*index=1*/f32[<=8]{0}, ((token[]), u8[])) custom-call(s32[] %c, %p), custom_call_target="x, y", new_key={a={b=[1,2]}}, backend_config={"s":"}{\"","estimated_cycles":"9223372036854775807"}
  ROOT %r = s4[3]{0:E(4)} fusion(%t), kind=kLoop, calls=%add, backend_config={"estimated_cycles":"12"}
}
"""  # noqa: E501


def test_reads_what_stands_in_a_module() -> None:
    module = hlo.parse(BY_HAND)
    assert (module.name, module.entry, module.devices) == ("jit_f", "main.2", 8)
    assert list(module.computations) == ["add", "main.2"]
    assert module.file_names == {1: "/home/me/model.py", 2: r"/x/say \"hi\".py"}
    assert module.file_locations[1] == hlo.FileLocation(1, 1, 12)
    assert module.stack_frames[1] == hlo.StackFrame(1, 0)
    main = module.computations["main.2"]
    assert main.root.name == "r"
    assert main.root.called == ("add",)
    assert main.root.estimated_cycles == 12
    assert main.parameters[0].name == "p"
    assert [i.line for i in main.instructions] == [24, 25, 26, 27]


def test_reads_strings_and_brackets_of_all_kinds() -> None:
    _, constant, call, _ = hlo.parse(BY_HAND).computations["main.2"].instructions
    assert constant.literal == "{1, 2, 3}"
    assert constant.metadata.op_name == r"a)b\"("
    assert (constant.metadata.source_file, constant.metadata.source_line) == ("/m.py", 7)
    assert call.operands == ("c", "p")
    assert call.custom_call_target == "x, y"
    assert call.attribute("new_key") == "{a={b=[1,2]}}"
    assert call.estimated_cycles is None  # uninitialised


def test_reads_shapes_and_memory_spaces() -> None:
    parameter, _, call, root = hlo.parse(BY_HAND).computations["main.2"].instructions
    scalar, matrix = shapes.arrays(parameter.shape)
    assert (scalar.memory_space, matrix.memory_space) == (6, 1)
    assert (matrix.dims, matrix.nbytes, matrix.hbm_bytes) == ((8, 128), 2048, 0)
    assert [a.dtype for a in shapes.arrays(call.shape)] == ["s32", "f32", "token", "u8"]
    assert shapes.hbm_bytes(call.shape) == 4 + 32 + 0 + 1
    assert shapes.hbm_bytes(root.shape) == 2  # 3 times 4 bits, packed


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("pred[10]{0}", 10),
        ("bf16[2,3]", 12),
        ("f8e4m3fn[5]", 5),
        ("f8e8m0fnu[5]", 5),
        ("f4e2m1fn[4]", 2),
        ("s4[6]", 3),
        ("u2[8]{0:E(2)}", 2),
        ("s4[6]{0}", 6),  # a layout that doesn't pack
        ("c128[2]", 32),
        ("f32[]", 4),
        ("f32[0,7]", 0),
    ],
)
def test_bytes_of_types(text: str, size: int) -> None:
    shape, end = shapes.parse(text)
    assert shapes.hbm_bytes(shape) == size
    assert end == len(text)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("f32[] add(", "q7[] add(", "unknown element type 'q7'"),
        ("f32[] add(%a, %b)", "f32[] add(%a, (%b)", "unbalanced"),
        ("%add.1 = f32[]", "%add.1 f32[]", "no `%name = `"),
        ("ROOT %add.1", "%add.1", "has no ROOT"),
        ("f32[<=8]", "f32[?]", "has no size"),
        ("FunctionNames", "Functions of a new kind", "neither a table nor"),
        ("ENTRY %main.2", "%main.2", "without an ENTRY"),
        (", kind=kLoop", " kLoop", "no attribute"),
    ],
)
def test_names_the_line_it_does_not_understand(old: str, new: str, why: str) -> None:
    assert old in BY_HAND
    with pytest.raises(hlo.UnreadableHlo, match=why) as caught:
        hlo.parse(BY_HAND.replace(old, new, 1))
    assert caught.value.fields["line"] > 1


def test_text_that_is_no_hlo() -> None:
    with pytest.raises(hlo.UnreadableHlo, match="line 1 of the HLO"):
        hlo.parse("module @jit_f {\n  func.func public @main()\n}")


@pytest.mark.parametrize("target", ["cpu", "v6e:2x2"])
def test_reads_compiled_programs_whole(target: str) -> None:
    compiled = programs.compile_for(
        target,
        programs.loss_of(programs.scanned),
        programs.array(16, 128),
        programs.array(4, 128, 128),
    )
    text = compiled.as_text()
    module = hlo.parse(text)
    names = {name for c in module.computations.values() for name in c.by_name}
    assert len(names) == sum(1 for line in text.split("\n") if " = " in line and line[0] == " ")
    for computation in module.computations.values():
        for instruction in computation.instructions:
            assert all(name in computation.by_name for name in instruction.operands)
            assert all(name in module.computations for name in instruction.called)
    assert any(i.opcode == "while" for i in module.computations[module.entry].instructions)


def test_attributes_of_products() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, w, (2, 1), [(1, 2), (0, 0)], rhs_dilation=(1, 2), feature_group_count=2
        )

    module = programs.module_of(
        "v6e:2x2", fn, programs.array(8, 4, 16, 16), programs.array(6, 2, 3, 3)
    )
    (convolution,) = (
        i for c in module.computations.values() for i in c.instructions if i.opcode == "convolution"
    )
    assert 3 in {d.size for d in convolution.window}
    rank = len(convolution.window) + 2
    assert all(len(set(labels)) == len(labels) == rank for labels in convolution.dim_labels)

    module = programs.module_of(
        "cpu", jnp.matmul, programs.array(5, 8, 16), programs.array(5, 16, 4)
    )
    (dot,) = (i for c in module.computations.values() for i in c.instructions if i.opcode == "dot")
    assert dot.dot_dims == DotDims((2,), (1,), (0,), (0,))


def test_time_is_linear() -> None:
    def text(n: int) -> str:
        body = "\n".join(
            f'  %v{i + 1} = f32[8,128]{{1,0:T(8,128)}} add(%v{i}, %v{i}), metadata={{op_name="f" '
            f'stack_frame_id=1}}, backend_config={{"window":["1","2"],"estimated_cycles":"{i}"}}'
            for i in range(n)
        )
        return (
            "HloModule m\n\nENTRY %main (v0: f32[8,128]) -> f32[8,128] {\n"
            f"  %v0 = f32[8,128]{{1,0}} parameter(0)\n{body}\n"
            f"  ROOT %r = f32[8,128]{{1,0}} copy(%v{n})\n}}\n"
        )

    def seconds(n: int) -> float:
        source = text(n)
        start = time.process_time()
        hlo.parse(source)
        return time.process_time() - start

    seconds(100)
    assert seconds(16_000) < 20 * seconds(2_000)


def test_a_long_string_is_skipped_at_once() -> None:
    body = "TUz" * 1_000_000
    text = BY_HAND.replace('"s":"', f'"body":"{body}","s":"')
    start = time.process_time()
    hlo.parse(text)
    assert time.process_time() - start < 1
