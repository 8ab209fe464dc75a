"""The C of an exported model that people read: its header, and the functions that the header declares."""

import torch

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
    """An input or output: its name in C, a tensor like it, {dim: number of the size}."""

    def __init__(self, name, example, dims, sizes):
        self.name, self.example, self.dims, self.sizes = name, example, dims, sizes

    def shape(self) -> str:
        shown = [
            self.sizes[self.dims[d]] if d in self.dims else str(n)
            for d, n in enumerate(self.example.shape)
        ]
        return f"[{', '.join(shown)}]"

    def text(self) -> str:
        dtype = str(self.example.dtype).removeprefix("torch.")
        return f"{self.name} {dtype}{self.shape()}"

    def parameter(self, written: bool) -> str:
        kind = _TYPES.get(self.example.dtype, "void")
        name = self.name + ("_out" if written and self.name in self.taken else "")
        return f"{'' if written else 'const '}{kind} *{name}"

    taken = frozenset()


def _signature(name, inputs, outputs, sizes) -> str:
    parameters = ["opaque_model *model", *(f"int64_t {size}" for size in sizes)]
    parameters += [one.parameter(False) for one in inputs]
    parameters += [one.parameter(True) for one in outputs]
    return f"int {name}_run({', '.join(parameters)})"


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

void {name}_seed(opaque_model *model, uint64_t seed) {{ opq_exported_seed(model, seed); }}

void {name}_close(opaque_model *model) {{ opq_exported_close(model); }}

const char *{name}_error(void) {{ return opq_exported_error(); }}

const opaque_model_interface *opaque_model_library(void)
{{
    static opaque_model_interface all = {{.open = {name}_open, .run = opq_exported_run, .weight = opq_exported_weight_data,
                                         .seed = opq_exported_seed, .close = opq_exported_close, .error = opq_exported_error}};
    all.info = exported.info;
    return &all;
}}
"""
