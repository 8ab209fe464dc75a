/* Shape and dtype rules, as a table: operands in, type or error out.
 *
 *   operands   types, `~` before a Python number; then attributes; then `-> type` where the type is given
 *   expect     the result type, then the dtype to compute in, in parentheses, where it is another one
 */
#include "tests/support.h"

#include "graph/reader.h"

static const struct {
    const char *op, *operands, *expect;
} rows[] = {
    /* broadcasting */
    {"add", "f32[2,3] f32[3]", "f32[2,3]"},
    {"add", "f32[2,1] f32[1,3]", "f32[2,3]"},
    {"add", "f32[0,3] f32[1,1]", "f32[0,3]"},
    {"add", "f32[] f32[]", "f32[]"},
    {"add", "f32[1] f32[0]", "f32[0]"},
    {"add", "f32[1,2,1,4,1,6] f32[3,1,5,1]", "f32[1,2,3,4,5,6]"},
    {"add", "f32[2,3] f32[2]", "error: add: shapes [2,3] and [2] do not broadcast (axis 1: 3 and 2)"},
    {"add", "f32[2] f32[0]", "error: add: shapes [2] and [0] do not broadcast (axis 0: 2 and 0)"},
    {"add", "f32[4294967296,1] f32[1,4294967296]", "error: add: shape [4294967296,4294967296] is too large"},
    {"add", "f32[2]", "error: add: takes 2 operands, got 1"},
    {"add", "f32[2] f32[2] {axis=0}", "error: add: has no attribute axis"},
    {"clamp", "f32[2,1] f32[] f32[3]", "f32[2,3]"},
    {"adam_p", "f32[4] f32[4] f32[4] f32[] f32[] f32[] f32[] f32[]", "f32[4]"},

    /* promotion within a group */
    {"add", "u8[2] i8[2]", "i16[2]"},
    {"add", "i8[2] u8[2]", "i16[2]"},
    {"add", "u8[2] i16[2]", "i16[2]"},
    {"add", "u8[2] bool[2]", "u8[2]"},
    {"add", "bool[2] bool[2]", "bool[2]"},
    {"add", "i32[2] i64[2]", "i64[2]"},
    {"add", "i64[2] f16[2]", "f16[2]"},
    {"add", "f16[2] bf16[2]", "f32[2]"},
    {"add", "bf16[2] f32[2]", "f32[2]"},
    {"add", "f32[2] f64[2]", "f64[2]"},
    /* between groups: a lower one counts only if its kind is higher */
    {"add", "i64[] f16[4]", "f16[4]"},
    {"add", "f64[] f16[4]", "f16[4]"},
    {"add", "f64[] i32[4]", "f64[4]"},
    {"add", "i64[] i8[4]", "i8[4]"},
    {"add", "i8[] bool[4]", "i8[4]"},
    {"add", "f32[] f64[]", "f64[]"},
    {"add", "i64[] i32[1]", "i32[1]"},
    /* Python numbers */
    {"add", "f16[4] ~f64[]", "f16[4]"},
    {"add", "f16[] ~f64[]", "f16[]"},
    {"add", "i32[4] ~f64[]", "f32[4]"},
    {"add", "i32[] ~f64[]", "f32[]"},
    {"add", "u8[4] ~i64[]", "u8[4]"},
    {"add", "bool[4] ~i64[]", "i64[4]"},
    {"add", "bool[4] ~bool[]", "bool[4]"},
    {"add", "f64[4] ~f32[]", "f64[4]"},
    {"add", "~f64[] ~i64[]", "f32[]"},
    {"add", "bool[4] i8[] ~f64[]", "error: add: takes 2 operands, got 3"},
    {"clamp", "bool[4] i8[] ~f64[]", "f32[4]"},
    {"clamp", "bool[4] i8[] ~i64[]", "i8[4]"},

    /* dtype rules */
    {"div", "i64[2] i64[2]", "f32[2]"},
    {"div", "f64[2] i64[2]", "f64[2]"},
    {"exp", "bool[2]", "f32[2]"},
    {"exp", "bf16[2]", "bf16[2]"},
    {"lt", "i32[5] f32[]", "bool[5] (f32)"},
    {"logical_not", "i64[5]", "bool[5] (i64)"},
    {"where", "bool[3] i64[2,1] f32[3]", "f32[2,3]"},
    {"where", "bool[3] f16[] ~f64[]", "f16[3]"},
    {"where", "f32[3] f32[3] f32[3]", "error: where: the condition must be bool, got f32"},
    {"masked_fill", "f16[2,3] bool[3] f64[]", "f16[2,3]"},
    {"masked_fill", "f16[2,3] bool[3] f64[] -> f16[2,3]", "f16[2,3]"},
    {"masked_fill", "f16[2,3] bool[3] f64[] -> f64[2,3]", "error: masked_fill: gives f16[2,3], not f64[2,3]"},
    {"masked_fill", "f16[2,3] u8[3] f64[]", "error: masked_fill: the condition must be bool, got u8"},
    {"gelu", "i64[2]", "error: gelu: not implemented for i64"},
    {"logaddexp", "i64[2] i64[2]", "error: logaddexp: not implemented for i64"},
    {"bitwise_and", "f32[2] i64[2]", "error: bitwise_and: not implemented for f32"},
    {"bitwise_not", "f16[2]", "error: bitwise_not: not implemented for f16"},
    {"bitwise_not", "bool[2]", "bool[2]"},
    {"add", "raw64[2] raw64[2]", "error: add: not implemented for raw64"},
    {"add", "f32[2] raw64[2]", "error: add: not implemented for raw64"},

    /* reductions */
    {"sum", "f32[2,3] {axes=[1]}", "f32[2,1]"},
    {"sum", "f32[2,3] {axes=[0,1]}", "f32[1,1]"},
    {"sum", "f32[2,3] {axes=[]}", "f32[2,3]"},
    {"sum", "f32[0,3] {axes=[0]}", "f32[1,3]"},
    {"sum", "f32[] {axes=[]}", "f32[]"},
    {"sum", "~f32[] {axes=[]}", "f32[]"},
    {"square", "~f32[]", "f32[]"},
    {"expand", "~f32[] -> f32[2]", "f32[2]"},
    {"sum", "i8[2,3] {axes=[1]}", "i64[2,1]"},
    {"sum", "bool[2,3] {axes=[1]}", "i64[2,1]"},
    {"sum", "f16[2,3] {axes=[1]}", "f16[2,1]"},
    {"sum", "f32[2,3] {axes=[2]}", "error: sum: axis 2 out of range for 2 dimensions"},
    {"sum", "f32[2,3] {axes=[-1]}", "error: sum: axis -1 out of range for 2 dimensions"},
    {"sum", "f32[2,3] {axes=[1,0]}", "error: sum: axes must ascend, axis 0 follows 1"},
    {"sum", "f32[2,3] {axes=[1,1]}", "error: sum: axes must ascend, axis 1 follows 1"},
    {"sum", "f32[2,3]", "error: sum: attribute axes missing"},
    {"prod", "i32[2,3] {axes=[0]}", "i64[1,3]"},
    {"amax", "i8[2,3] {axes=[1]}", "i8[2,1]"},
    {"amax", "f32[2,0] {axes=[0]}", "f32[1,0]"},
    {"amax", "f32[2,0] {axes=[1]}", "error: amax: expected reduction dim 1 of [2,0] to have non-zero size"},
    {"amin", "f32[0] {axes=[0]}", "error: amin: expected reduction dim 0 of [0] to have non-zero size"},
    {"argmax", "f16[2,3] {axes=[1]}", "i64[2,1] (f16)"},
    {"argmin", "f32[0,2] {axes=[0,1]}", "error: argmin: expected reduction dim 0 of [0,2] to have non-zero size"},
    {"any", "f32[2,3] {axes=[1]}", "bool[2,1]"},
    {"all", "u8[0] {axes=[0]}", "bool[1]"},
    {"count", "f32[2,3] {axes=[1]}", "f32[1,1]"},
    {"sum", "raw32[2] {axes=[0]}", "error: sum: not implemented for raw32"},

    /* composites: reduced or not follows from the expression */
    {"mean", "f32[2,3] {axes=[1]}", "f32[2,1]"},
    {"mean", "i32[2,3] {axes=[1]}", "error: mean: not implemented for i32"},
    {"var", "bf16[2,3] ~f64[] {axes=[0]}", "bf16[1,3]"},
    {"norm2", "f32[2,3] {axes=[0,1]}", "f32[1,1]"},
    {"logsumexp", "i64[2,3] {axes=[1]}", "f32[2,1]"},
    {"softmax", "f32[2,3] {axes=[1]}", "f32[2,3]"},
    {"softmax", "i64[2,3] {axes=[1]}", "f32[2,3]"},
    {"softmax", "f32[2,0] {axes=[1]}", "error: softmax: expected reduction dim 1 of [2,0] to have non-zero size"},
    {"softmax", "f32[2,3] {axes=[2]}", "error: softmax: axis 2 out of range for 2 dimensions"},
    {"softmax_backward", "f32[2,3] f32[2,3] {axes=[1]}", "f32[2,3]"},
    {"log_softmax", "f16[2,3] {axes=[0]}", "f16[2,3]"},
    {"log_softmax_backward", "f32[2,3] f32[2,3] {axes=[1]}", "f32[2,3]"},
    /* what was found last is that of equal axes and operands only */
    {"layer_norm_rstd", "f32[4,3] ~f64[] {axes=[1]}", "f32[4,1]"},
    {"layer_norm_rstd", "f32[4,3] ~f64[] {axes=[0]}", "f32[1,3]"},
    {"layer_norm_rstd", "f32[4,3] ~f64[] {axes=[0,1]}", "f32[1,1]"},
    {"layer_norm_rstd", "f32[4,5] ~f64[] {axes=[0,1]}", "f32[1,1]"},
    {"layer_norm_rstd", "f32[4,5] ~f64[] {axes=[1]}", "f32[4,1]"},
    {"layer_norm_rstd", "f64[4,5] ~f64[] {axes=[1]}", "f64[4,1]"},
    {"layer_norm_rstd", "f64[4,5] f32[6] {axes=[1]}", "f64[4,6]"},
    {"layer_norm", "f32[4,2,3] f32[3] f32[3] ~f64[] {axes=[2]}", "f32[4,2,3]"},
    {"layer_norm", "f32[4,2,3] f32[2,3] f32[2,3] ~f64[] {axes=[1,2]}", "f32[4,2,3]"},
    {"layer_norm", "f32[4,3] f32[2] f32[3] ~f64[] {axes=[1]}",
     "error: layer_norm: shapes [4,3] and [2] do not broadcast (axis 1: 3 and 2)"},
    {"layer_norm_plain", "f32[4,3] ~f64[] {axes=[1]}", "f32[4,3]"},
    {"layer_norm_rstd", "f32[4,3] ~f64[] {axes=[1]}", "f32[4,1]"},
    {"layer_norm_backward", "f32[4,3] f32[4,3] f32[4,1] f32[4,1] {axes=[1]}", "f32[4,3]"},
    {"attention", "f32[2,8,5,16] f32[2,8,7,16] f32[2,8,7,32] ~f64[]", "f32[2,8,5,32]"},
    {"attention", "f32[5,16] f32[1,7,16] f32[3,7,32] f32[]", "f32[3,5,32]"},
    {"attention", "f32[5,16] f32[7,15] f32[7,32] f32[]", "error: attention: shapes [5,16], [7,15] and [7,32] do not fit"},
    {"attention", "f32[5,16] f32[7,16] f32[6,32] f32[]", "error: attention: shapes [5,16], [7,16] and [6,32] do not fit"},
    {"attention", "f32[5,16] f32[7,16] f32[7,32] f32[1]", "error: attention: the scale has no dimensions, got [1]"},
    {"attention", "i64[5,16] i64[7,16] i64[7,32] i64[]", "error: attention: not implemented for i64"},
    {"attention_mask", "f32[2,5,16] f32[2,7,16] f32[2,7,32] f32[] f32[5,7]", "f32[2,5,32]"},
    {"attention_mask", "f32[5,16] f32[7,16] f32[7,32] f32[] f32[1,7]", "f32[5,32]"},
    {"attention_mask", "f32[5,16] f32[7,16] f32[7,32] f32[] f32[3,5,7]",
     "error: attention_mask: mask [3,5,7] does not broadcast to [5,7]"},
    {"attention_mask", "f32[5,16] f32[7,16] f32[7,32] f32[] bool[5,7]",
     "error: attention_mask: the mask is added and must be a float, got bool"},
    {"lstm", "f32[6,20] f32[3,5] f32[3,5] f32[20,5]", "f32[6,5]"},
    {"lstm", "f32[3,20] f32[3,0] f32[3,5] f32[20,0] {reverse=1}", "f32[3,5]"},
    {"lstm", "f32[6,20] f32[3,0] f32[3,5] f32[20,0]", "error: lstm: weight [20,0] for a hidden state of 5"},
    {"lstm", "f32[7,20] f32[3,5] f32[3,5] f32[20,5]",
     "error: lstm: sums [7,20], states [3,5] and weight [20,5] are not of steps, batch and hidden state"},
    {"lstm", "f32[0,20] f32[0,5] f32[0,5] f32[20,5]",
     "error: lstm: sums [0,20], states [0,5] and weight [20,5] are not of steps, batch and hidden state"},
    {"lstm", "f32[6,15] f32[3,5] f32[3,5] f32[20,5]", "error: lstm: operand 0 is [6,15], not [6,20]"},
    {"lstm", "i64[6,20] i64[3,5] i64[3,5] i64[20,5]", "error: lstm: not implemented for i64"},
    {"lstm_states", "f32[6,20] f32[3,5] f32[3,5] f32[20,5]", "f32[6,5]"},
    {"lstm_sums", "bf16[6,20] bf16[3,5] bf16[3,5] bf16[20,5]", "bf16[6,20]"},
    {"lstm_backward", "f32[6,5] f32[6,20] f32[6,5] f32[3,5] f32[3,5] f32[20,5]", "f32[6,20]"},
    {"lstm_backward", "f32[6,5] f32[6,20] f32[6,5] f32[3,5] f32[2,5] f32[20,5]",
     "error: lstm_backward: operand 4 is [2,5], not [3,5]"},
    {"lstm_backward_state", "f32[6,5] f32[6,20] f32[6,5] f32[3,5] f32[3,5] f32[20,5]", "f32[3,5]"},
    {"gru", "f32[6,15] f32[3,5] f32[15,5] f32[15]", "f32[6,5]"},
    {"gru", "f32[6,15] f32[3,5] f32[15,5] ~f64[]", "f32[6,5]"},
    {"gru", "f32[6,15] f32[3,5] f32[15,5] f32[6,15]",
     "error: gru: shapes [3,15] and [6,15] do not broadcast (axis 0: 3 and 6)"},
    {"gru_sums", "f32[6,15] f32[3,5] f32[15,5] f32[15]", "f32[6,15]"},
    {"gru_backward", "f32[6,5] f32[6,15] f32[6,15] f32[6,5] f32[3,5] f32[15,5]", "f32[6,15]"},
    {"gru_backward_hidden", "f32[6,5] f32[6,15] f32[6,15] f32[6,5] f32[3,5] f32[15,5]", "f32[6,15]"},
    {"gru_backward_state", "f32[6,5] f32[6,15] f32[6,15] f32[6,5] f32[3,5] f32[15,5]", "f32[3,5]"},

    /* casts, numbers, sources */
    {"cast", "f32[2,3] -> i8[2,3]", "i8[2,3] (f32)"},
    {"cast", "f32[2,3] -> i8[3,2]", "error: cast: shape [2,3] does not become [3,2]"},
    {"cast", "f32[2] -> raw32[2]", "error: cast: f32 does not convert to raw32"},
    {"cast", "f32[2]", "error: cast: the result type must be given"},
    {"scalar", "{value=1} -> f32[]", "f32[]"},
    {"const", "{value=1} -> f32[1]", "error: const: has no dimensions, got [1]"},
    {"const", "-> f32[]", "error: const: attribute value missing"},
    {"iota", "{axis=1} -> i64[2,3]", "i64[2,3]"},
    {"iota", "{axis=0} -> i64[]", "error: iota: axis 0 out of range for 0 dimensions"},
    {"iota", "{axis=0} -> f32[2]", "error: iota: gives i64, not f32"},
    {"uniform", "i64[] i64[] -> f32[2,3]", "f32[2,3] (i64)"},
    {"uniform", "i64[] i64[] -> f64[2]", "error: uniform: gives f32, not f64"},
    {"normal", "i64[] i64[1] -> f32[2]", "error: normal: operand 1 has no dimensions, got [1]"},
    {"normal", "i64[] i32[] -> f32[2]", "error: normal: operand 1 must be i64, got i32"},
    {"extern", "f32[2] raw64[3] {key=\"fft\"} -> raw64[7]", "raw64[7] (f32)"},
    {"extern", "f32[2] -> f32[2]", "error: extern: attribute key missing"},
    {"extern_result", "f32[2] {result=1} -> i64[2]", "i64[2] (f32)"},

    /* views */
    {"permute", "f32[2,3,4] {dims=[2,0,1]}", "f32[4,2,3]"},
    {"permute", "f32[] {dims=[]}", "f32[]"},
    {"permute", "f32[2,3] {dims=[0]}", "error: permute: dims has 1 values for 2 dimensions"},
    {"permute", "f32[2,3] {dims=[0,0]}", "error: permute: dim 0 appears twice"},
    {"permute", "f32[2,3] {dims=[0,2]}", "error: permute: dim 2 out of range for 2 dimensions"},
    {"permute", "f32[2,3] {dims=[0,-1]}", "error: permute: dim -1 out of range for 2 dimensions"},
    {"reshape", "f32[2,3] -> f32[6]", "f32[6]"},
    {"reshape", "f32[1] -> f32[]", "f32[]"},
    {"reshape", "f32[0,3] -> f32[5,0]", "f32[5,0]"},
    {"reshape", "f32[2,3] -> f32[7]", "error: reshape: shape [2,3] does not become [7] (6 and 7 elements)"},
    {"reshape", "f32[2,3] -> i32[6]", "error: reshape: keeps the dtype, got i32 for f32"},
    {"expand", "f32[3,1] -> f32[2,3,4]", "f32[2,3,4]"},
    {"expand", "f32[1] -> f32[0]", "f32[0]"},
    {"expand", "f32[3] -> f32[3,1]", "error: expand: shape [3] does not expand to [3,1]"},
    {"expand", "f32[1,3] -> f32[3]", "error: expand: shape [1,3] does not expand to [3]"},
    {"slice", "f32[10,3] {start=[1,0], step=[4,1]} -> f32[3,3]", "f32[3,3]"},
    {"slice", "f32[10] {start=[10], step=[1]} -> f32[0]", "f32[0]"},
    {"slice", "f32[10] {start=[2], step=[4]} -> f32[3]", "error: slice: 3 elements from 2 by 4 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[9], step=[-3]} -> f32[4]", "f32[4]"},
    {"slice", "f32[10] {start=[9], step=[-4]} -> f32[4]",
     "error: slice: 4 elements from 9 by -4 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[10], step=[-1]} -> f32[1]",
     "error: slice: 1 elements from 10 by -1 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[0], step=[-9223372036854775808]} -> f32[4]",
     "error: slice: 4 elements from 0 by -9223372036854775808 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[11], step=[1]} -> f32[0]",
     "error: slice: 0 elements from 11 by 1 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[-1], step=[1]} -> f32[1]",
     "error: slice: 1 elements from -1 by 1 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[0], step=[0]} -> f32[1]", "error: slice: 1 elements from 0 by 0 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[0], step=[9223372036854775807]} -> f32[4]",
     "error: slice: 4 elements from 0 by 9223372036854775807 do not fit axis 0 of [10]"},
    {"slice", "f32[10] {start=[0], step=[1]} -> f32[1,1]", "error: slice: shape [10] has no slice [1,1]"},
    {"strided", "f32[4,3] {offset=1, strides=[3,0]} -> f32[4,2]", "f32[4,2]"},
    {"strided", "f32[12] {offset=11, strides=[]} -> f32[]", "f32[]"},
    {"strided", "f32[12] {offset=50, strides=[1]} -> f32[0]", "f32[0]"},
    {"strided", "f32[4,3] {offset=2, strides=[3,1]} -> f32[4,2]",
     "error: strided: window [4,2] with strides [3,1] at 2 does not fit the 12 elements of [4,3]"},
    {"strided", "f32[12] {offset=11, strides=[-1]} -> f32[2]",
     "error: strided: window [2] with strides [-1] at 11 does not fit the 12 elements of [12]"},
    {"strided", "f32[12] {offset=0, strides=[4611686018427387904]} -> f32[3]",
     "error: strided: window [3] with strides [4611686018427387904] at 0 does not fit the 12 elements of [12]"},
    {"strided", "f32[12] {offset=0, strides=[1]} -> f32[2,2]", "error: strided: strides has 1 values for 2 dimensions"},
    {"pad", "f32[4,3] {start=[1,-1], value=0x0p+0} -> f32[7,2]", "f32[7,2]"},
    {"pad", "f32[4,3] {start=[7,-3], value=0x0p+0} -> f32[7,2]", "f32[7,2]"},
    {"pad", "f32[4,3] {start=[8,0], value=0x0p+0} -> f32[7,2]", "error: pad: axis 0 of [7,2] has no place 8"},
    {"pad", "f32[4,3] {start=[0,-4], value=0x0p+0} -> f32[7,2]", "error: pad: axis 1 of [7,2] has no place -4"},
    {"pad", "f32[4,3] {start=[0], value=0x0p+0} -> f32[7,2]", "error: pad: start has 1 values for 2 dimensions"},
    {"pad", "f32[4,3] {start=[0,0], value=0x0p+0} -> f32[7]",
     "error: pad: shape [7] is not [4,3] with something around it"},
    {"update", "f32[4,3] f32[4] {offset=2, sizes=[4], strides=[3]}", "f32[4,3]"},
    {"update", "f32[4,3] f32[4] {offset=3, sizes=[4], strides=[3]}",
     "error: update: window [4] with strides [3] at 3 does not fit the 12 elements of [4,3]"},
    {"update", "f32[4,3] f32[3] {offset=2, sizes=[4], strides=[3]}",
     "error: update: window [4] takes no value of shape [3]"},
    {"update", "f32[4,3] f64[4] {offset=2, sizes=[4], strides=[3]}", "error: update: the value must be f32, got f64"},
    {"update", "f32[4,3] f32[4] {offset=2, sizes=[4], strides=[0]}",
     "error: update: more than one element of window [4] is at the same place (axis 0)"},

    /* index families */
    {"index_select", "f32[5,6,7] i64[2,3] {axis=1}", "f32[5,2,3,7]"},
    {"index_select", "f32[5] i64[] {axis=0}", "f32[]"},
    {"index_select", "raw64[5,6] i64[4] {axis=0}", "raw64[4,6]"},
    {"index_select", "f32[5] i32[2] {axis=0}", "error: index_select: operand 1 must be i64, got i32"},
    {"index_select", "f32[5] i64[2] {axis=1}", "error: index_select: axis 1 out of range for 1 dimensions"},
    {"index_select", "f32[1,1,1,1,1,1,1,1] i64[1,1,1,1,1,1] {axis=0}",
     "error: index_select: 13 dimensions are more than 12"},
    {"gather", "f32[5,6] i64[5,9] {axis=1}", "f32[5,9]"},
    {"gather", "f32[5,6] i64[2,9] {axis=1}", "f32[2,9]"},
    {"gather", "f32[5,6] i64[6,9] {axis=1}", "error: gather: index [6,9] does not lie within [5,6] apart from axis 1"},
    {"gather", "f32[5,6] i64[5] {axis=1}", "error: gather: index [5] does not lie within [5,6] apart from axis 1"},
    {"index_add", "f32[5,6] i64[9] f32[9,6] {axis=0}", "f32[5,6]"},
    {"index_add", "f32[5,6] i64[9] f32[9,7] {axis=0}", "error: index_add: shapes [5,6] and [9,7] differ outside axis 0"},
    {"index_add", "f32[5,6] i64[8] f32[9,6] {axis=0}", "error: index_add: index [8] does not number axis 0 of [9,6]"},
    {"index_add", "f32[5,6] i64[9] f64[9,6] {axis=0}",
     "error: index_add: self and source must have the same dtype, got f32 and f64"},
    {"scatter_add", "f32[5,6] i64[3,9] f32[4,9] {axis=1}", "f32[5,6]"},
    {"scatter_add", "f32[5,6] i64[3,9] f32[4,8] {axis=1}", "error: scatter_add: index [3,9] does not lie within [4,8]"},
    {"scatter_add", "f32[5,6] i64[6,9] f32[6,9] {axis=1}",
     "error: scatter_add: index [6,9] does not lie within [5,6] apart from axis 1"},
    {"concat", "f32[2,3] f32[2,4] f32[2,0] {axis=1}", "f32[2,7]"},
    {"concat", "i64[2] f16[3] {axis=0}", "f16[5]"},
    {"concat", "raw64[2] raw64[3] {axis=0}", "raw64[5]"},
    {"concat", "raw64[2] f32[3] {axis=0}", "error: concat: not implemented for raw64"},
    {"concat", "f32[2,3] f32[3,4] {axis=1}", "error: concat: shapes [2,3] and [3,4] differ outside axis 1"},
    {"concat", "f32[2,3] f32[2] {axis=1}", "error: concat: shapes [2,3] and [2] differ outside axis 1"},
    {"concat", "{axis=0}", "error: concat: takes at least one operand"},
    {"concat", "u8[9223372036854775807] u8[9223372036854775807] {axis=0}", "error: concat: axis 0 is too large"},

    /* matmul */
    {"matmul", "f32[3,4] f32[4,5]", "f32[3,5]"},
    {"matmul", "f32[3,4] f32[5,4] {transpose_b=1}", "f32[3,5]"},
    {"matmul", "f32[4,3] f32[5,4] {transpose_a=1, transpose_b=1}", "f32[3,5]"},
    {"matmul", "f32[2,1,3,4] f32[7,4,5]", "f32[2,7,3,5]"},
    {"matmul", "f32[0,4] f32[4,5]", "f32[0,5]"},
    {"matmul", "i64[3,4] f16[4,5]", "f16[3,5]"},
    {"matmul", "f32[3,4] f32[5,6]", "error: matmul: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"},
    {"matmul", "f32[3,4] f32[4,5] {transpose_b=1}",
     "error: matmul: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x4)"},
    {"matmul", "f32[3,4] f32[4]", "error: matmul: takes matrices, got shapes [3,4] and [4]"},
    {"matmul", "f32[2,3,4] f32[3,4,5]", "error: matmul: shapes [2] and [3] do not broadcast (axis 0: 2 and 3)"},
    {"matmul", "f32[3,4] f32[4,5] {transpose_b=2}", "error: matmul: transpose_b must be 0 or 1"},
    {"matmul", "f32[3,4] i8[4,5]", "f32[3,5]"},
    {"matmul", "i8[3,4] f16[4,5]", "f16[3,5]"},
    {"matmul", "i8[3,4] i8[4,5]", "i32[3,5]"},
    {"matmul", "bf16[3,4] i8[4,5] {pairs=1}", "bf16[3,5]"},
    {"matmul", "i8[3,4] i8[4,5] {pairs=1}",
     "error: matmul: pairs are of bf16 operands, or of f32 ones that are rounded to bf16"},
    {"matmul", "bf16[3,4] bf16[5,4] {pairs=1, transpose_b=1}", "bf16[3,5]"},
    {"matmul", "bf16[3,4] i8[4,5] {pairs=16}", "bf16[3,5]"},
    {"matmul", "bf16[3,4] bf16[4,5] {pairs=2}", "error: matmul: pairs must be 0, 1 or 16"},
    {"matmul", "f32[3,4] f32[4,5] {pairs=1}", "f32[3,5]"},
    {"matmul", "bf16[3,4] f32[4,5] {pairs=1}", "f32[3,5]"},
    {"matmul", "f16[3,4] f32[4,5] {pairs=1}",
     "error: matmul: pairs are of bf16 operands, or of f32 ones that are rounded to bf16"},
    {"matmul", "f16[3,4] f16[4,5] {pairs=1}",
     "error: matmul: pairs are of bf16 operands, or of f32 ones that are rounded to bf16"},
};

/* Writes the type, or "error: " and the message, as the table spells them. */
static void infer_text(const char *op_name, const char *operands, opq_text *out)
{
    opq_arena arena = {0};
    opq_reader r = {.text = operands, .length = strlen(operands), .arena = &arena};
    opq_type types[8], given, type;
    opq_attr attrs[OPQ_ATTR_COUNT];
    opq_dtype compute;
    opq_op op;
    int arity = 0, attr_count = 0;
    assert_true(opq_op_find(op_name, strlen(op_name), &op));
    for (opq_reader_blanks(&r); r.at < r.length && !strchr("{-", opq_reader_peek(&r)); opq_reader_blanks(&r)) {
        bool weak = opq_reader_take(&r, "~");
        expect_ok(opq_reader_type(&r, &types[arity]));
        types[arity++].weak = weak;
    }
    expect_ok(opq_reader_attrs(&r, OPQ_f32, attrs, &attr_count));
    bool is_given = opq_reader_take(&r, "->");
    if (is_given)
        expect_ok(opq_reader_type(&r, &given));
    assert_int_equal(r.at, r.length);
    if (opq_infer(op, types, arity, attrs, attr_count, is_given ? &given : NULL, &type, &compute) != OPQ_OK) {
        opq_text_add(out, "error: %s", opq_error());
    } else {
        opq_text_type(out, &type);
        if (compute != type.dtype)
            opq_text_add(out, " (%s)", opq_dtype_name(compute));
        assert_int_equal(type.weak, 0);
    }
    opq_arena_drop(&arena);
}

static void types_follow_the_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        opq_text text = {0};
        infer_text(rows[i].op, rows[i].operands, &text);
        expect_text(text.data, rows[i].expect, "%s %s", rows[i].op, rows[i].operands);
        opq_text_drop(&text);
    }
}

/* Promotion of two dimensioned operands is a join: it commutes, and joining again changes nothing. */
static void promotion_is_a_join(void **state)
{
    (void)state;
    int64_t one = 1;
    for (int a = OPQ_bool; a <= OPQ_f64; a++)
        for (int b = OPQ_bool; b <= OPQ_f64; b++) {
            opq_type types[2] = {opq_type_make((opq_dtype)a, 1, &one), opq_type_make((opq_dtype)b, 1, &one)};
            opq_type turned[2] = {types[1], types[0]};
            opq_dtype joined = opq_promote(types, 2);
            assert_int_equal(joined, opq_promote(turned, 2));
            if (a == b)
                assert_int_equal(joined, a);
            types[1].dtype = (uint8_t)joined;
            assert_int_equal(opq_promote(types, 2), joined);
        }
}

static void tree_follows_the_innermost_axis(void **state)
{
    (void)state;
    static const struct {
        int rank, count;
        int64_t axes[3];
        opq_tree expect;
    } trees[] = {
        {2, 1, {1}, OPQ_TREE_lanes},     {2, 1, {0}, OPQ_TREE_column},   {2, 2, {0, 1}, OPQ_TREE_lanes},
        {3, 2, {0, 1}, OPQ_TREE_column}, {3, 2, {0, 2}, OPQ_TREE_lanes}, {2, 0, {0}, OPQ_TREE_lanes},
        {0, 0, {0}, OPQ_TREE_lanes},
    };
    for (size_t i = 0; i < COUNT(trees); i++)
        assert_int_equal(opq_tree_for(trees[i].rank, trees[i].axes, trees[i].count), trees[i].expect);
}

/* A type given to a row that infers its own must be the inferred one. */
static void given_types_must_agree(void **state)
{
    (void)state;
    opq_type a = opq_type_make(OPQ_f32, 1, (int64_t[]){3}), wrong = opq_type_make(OPQ_f32, 1, (int64_t[]){4}), type;
    opq_dtype compute;
    expect_ok(opq_infer(OPQ_OP_neg, &a, 1, NULL, 0, &a, &type, &compute));
    expect_failure(opq_infer(OPQ_OP_neg, &a, 1, NULL, 0, &wrong, &type, &compute), OPQ_INVALID,
                   "neg: gives f32[3], not f32[4]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_follow_the_table),
        cmocka_unit_test(promotion_is_a_join),
        cmocka_unit_test(tree_follows_the_innermost_axis),
        cmocka_unit_test(given_types_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
