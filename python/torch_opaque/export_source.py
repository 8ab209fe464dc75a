"""The C of an exported model that people read: its header, and the functions that the header declares."""

import torch

# Names that a parameter cannot have: words of C and C++, and what a header has besides.
RESERVED = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "asm",
        "auto",
        "bitand",
        "bitor",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "compl",
        "concept",
        "const",
        "constexpr",
        "continue",
        "decltype",
        "default",
        "delete",
        "do",
        "double",
        "dynamic_cast",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "not",
        "nullptr",
        "operator",
        "or",
        "private",
        "protected",
        "public",
        "register",
        "requires",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "static_assert",
        "static_cast",
        "struct",
        "switch",
        "template",
        "this",
        "thread_local",
        "throw",
        "true",
        "try",
        "typedef",
        "typeid",
        "typename",
        "typeof",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "wchar_t",
        "while",
        "xor",
        "model",
        "sizes",
        "inputs",
        "outputs",
        "exported",
        "output_number",
        "out_sizes",
        "int8_t",
        "int16_t",
        "int32_t",
        "int64_t",
        "uint8_t",
        "uint16_t",
        "uint64_t",
        "size_t",
        "opaque_model",
        "NULL",
        "linux",
        "unix",
        "errno",
    ]
)

_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "uint16_t",
    torch.bfloat16: "uint16_t",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "uint8_t",
}


class Tensor:
    """An input or output: its name in C, a tensor like it, {dim: number of the size, or how it follows from sizes}."""

    def __init__(self, name, example, dims, sizes):
        self.name, self.example, self.dims, self.sizes = name, example, dims, sizes

    def shape(self) -> str:
        shown = [self._size(self.dims.get(d, str(n))) for d, n in enumerate(self.example.shape)]
        return f"[{', '.join(shown)}]"

    def _size(self, size) -> str:
        return size if isinstance(size, str) else self.sizes[size]

    def described(self) -> tuple:
        """As the library tells of it: -1 is a size that follows from sizes."""
        dims = [(d, -1 if isinstance(size, str) else size) for d, size in self.dims.items()]
        return self.name, self.example, dims

    def text(self) -> str:
        dtype = str(self.example.dtype).removeprefix("torch.")
        return f"{self.name} {dtype}{self.shape()}"

    def parameter(self, written: bool) -> str:
        kind = _TYPES.get(self.example.dtype, "void")
        return f"{'' if written else 'const '}{kind} *{self.name}"


def _signature(name, inputs, outputs, sizes) -> str:
    parameters = ["opaque_model *model", *(f"int64_t {size}" for size in sizes)]
    parameters += [one.parameter(False) for one in inputs]
    parameters += [one.parameter(True) for one in outputs]
    return f"int {name}_run({', '.join(parameters)})"


def _sizes(sizes) -> str:
    return "".join(f"int64_t {size}, " for size in sizes)


def _shape_declaration(name, sizes) -> list:
    if not sizes:
        return []
    return [
        "/* What sizes an output, by its number, has at these. */",
        f"int {name}_shape({_sizes(sizes)}int output_number, int64_t *out_sizes);",
    ]


def _shape_function(name, sizes) -> str:
    if not sizes:
        return ""
    return f"""
int {name}_shape({_sizes(sizes)}int output_number, int64_t *out_sizes)
{{
    const int64_t sizes[] = {{{", ".join(sizes)}}};
    return opq_exported_shape(&exported, sizes, output_number, out_sizes);
}}
"""


def header(name, cpu, inputs, outputs, sizes, bounds, public: str) -> str:
    lines = [f"/* {name}: made by torch_opaque.export(), for processors with {cpu.upper()}.", " *"]
    lines += [f" *   {one.text()}" for one in inputs] + [" * gives"]
    lines += [f" *   {one.text()}" for one in outputs] + [" *"]
    lines += [f" * {size} is from {low} to {high}." for size, (low, high) in bounds.items()]
    lines.append(
        " * Tensors are dense, row-major; f16 and bf16 are their 16 bits, bool is a byte, 0 or 1. */"
    )
    guard = f"{name.upper()}_H"
    return "\n".join(
        [
            *lines,
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            public.strip(),
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            "/* weights: NULL is the file beside the library. threads: that work on one call. */",
            f"int {name}_open(const char *weights, int threads, opaque_model **out_model);",
            f"{_signature(name, inputs, outputs, sizes)};",
            *_shape_declaration(name, sizes),
            "/* Random numbers, of a model that draws some, begin anew. */",
            f"void {name}_seed(opaque_model *model, uint64_t seed);",
            f"void {name}_close(opaque_model *model);",
            f"const char *{name}_error(void);",
            "const opaque_model_interface *opaque_model_library(void);",
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "#endif",
            "",
        ]
    )


def interface(name, inputs, outputs, sizes) -> str:
    def argument(one, written):
        return one.parameter(written).split("*")[1]

    given = ", ".join(argument(one, False) for one in inputs) or "NULL"
    made = ", ".join(argument(one, True) for one in outputs) or "NULL"
    chosen = ", ".join(sizes) or "0"
    return f"""#include "exported/exported.h"

#pragma GCC visibility push(default)
#include "{name}.h"
#pragma GCC visibility pop

extern const opq_exported exported __attribute__((visibility("hidden")));

int {name}_open(const char *weights, int threads, opaque_model **out_model)
{{
    return opq_exported_open(&exported, weights, threads, out_model);
}}

{_signature(name, inputs, outputs, sizes)}
{{
    const int64_t sizes[] = {{{chosen}}};
    const void *inputs[] = {{{given}}};
    void *outputs[] = {{{made}}};
    return opq_exported_run(model, sizes, inputs, outputs);
}}
{_shape_function(name, sizes)}
static int shape(const int64_t *sizes, int output, int64_t *out_sizes)
{{
    return opq_exported_shape(&exported, sizes, output, out_sizes);
}}

void {name}_seed(opaque_model *model, uint64_t seed) {{ opq_exported_seed(model, seed); }}

void {name}_close(opaque_model *model) {{ opq_exported_close(model); }}

const char *{name}_error(void) {{ return opq_exported_error(); }}

const opaque_model_interface *opaque_model_library(void)
{{
    static opaque_model_interface all = {{.open = {name}_open, .run = opq_exported_run, .shape = shape, .weight = opq_exported_weight_data,
                                         .seed = opq_exported_seed, .close = opq_exported_close, .error = opq_exported_error}};
    all.info = exported.info;
    return &all;
}}
"""
