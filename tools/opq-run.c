/* opq-run: runs an exported model on .npy files.
 *
 *   opq-run MODEL [--input [NAME=]FILE.npy]... [--size NAME=N]... [--output [NAME=]FILE.npy]... [--weights FILE] [--threads N] [--repeat N]
 *
 * MODEL is MODEL.so of torch_opaque.export(), or its path without the ending. Inputs without a name are taken in order; so are outputs, and
 * what is not written is printed. --repeat: runs so often, and prints the median and spread of the times.
 */
#include "exported/opaque_model.h"
#include "graph/clock.h"
#include "graph/npy.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS_MAX = 256, SIZES_MAX = 16, SHOWN = 8 };

typedef struct options {
    const char *model, *weights;
    const char *inputs[TENSORS_MAX], *outputs[TENSORS_MAX]; /* files by number, NULL */
    int input_count, output_count;                          /* those without a name so far */
    int64_t sizes[SIZES_MAX];
    int threads, repeat;
} options;

static const opaque_model_interface *library;

static int fail(const char *what, const char *which)
{
    fprintf(stderr, "opq-run: %s%s%s\n", what, which ? " " : "", which ? which : "");
    return 2;
}

static int find(const opaque_model_tensor *tensors, int count, const char *name, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(tensors[i].name) == length && memcmp(tensors[i].name, name, length) == 0)
            return i;
    return -1;
}

/* [NAME=]FILE. */
static int take_file(const opaque_model_tensor *tensors, int count, const char *text, const char **files, int *next)
{
    const char *equals = strchr(text, '=');
    int at = equals ? find(tensors, count, text, (size_t)(equals - text)) : (*next)++;
    if (at < 0 || at >= count || at >= TENSORS_MAX)
        return fail("the model has no such tensor:", text);
    files[at] = equals ? equals + 1 : text;
    return 0;
}

static int take_size(const char *text, int64_t *sizes)
{
    const opaque_model_info *info = library->info;
    const char *equals = strchr(text, '=');
    for (int i = 0; equals && i < info->size_count && i < SIZES_MAX; i++)
        if (strlen(info->sizes[i]) == (size_t)(equals - text) && !strncmp(info->sizes[i], text, (size_t)(equals - text))) {
            sizes[i] = strtoll(equals + 1, NULL, 10);
            return 0;
        }
    return fail("the model has no such size:", text);
}

static int take_option(options *o, const char *name, const char *value)
{
    const opaque_model_info *info = library->info;
    if (!strcmp(name, "--input"))
        return take_file(info->inputs, info->input_count, value, o->inputs, &o->input_count);
    if (!strcmp(name, "--output"))
        return take_file(info->outputs, info->output_count, value, o->outputs, &o->output_count);
    if (!strcmp(name, "--size"))
        return take_size(value, o->sizes);
    if (!strcmp(name, "--weights"))
        o->weights = value;
    else if (!strcmp(name, "--threads"))
        o->threads = atoi(value);
    else if (!strcmp(name, "--repeat"))
        o->repeat = atoi(value);
    else
        return fail("no such option:", name);
    return 0;
}

static int open_library(const char *model)
{
    char path[4096];
    size_t length = strlen(model);
    bool whole = length > 3 && !strcmp(model + length - 3, ".so");
    snprintf(path, sizeof path, "%s%s%s", strchr(model, '/') ? "" : "./", model, whole ? "" : ".so");
    void *handle = dlopen(path, RTLD_NOW);
    if (handle == NULL)
        return fail(dlerror(), NULL);
    void *symbol = dlsym(handle, "opaque_model_library");
    if (symbol == NULL)
        return fail(path, "is no exported model");
    opaque_model_function function;
    memcpy(&function, &symbol, sizeof function);
    library = function();
    return 0;
}

/* With the sizes in it. */
static int type_of(const opaque_model_tensor *tensor, const int64_t *sizes, opq_type *out)
{
    opq_dtype dtype;
    memset(out, 0, sizeof *out);
    if (!opq_dtype_find(tensor->dtype, strlen(tensor->dtype), &dtype))
        return fail("unknown dtype", tensor->dtype);
    out->dtype = (uint8_t)dtype;
    out->rank = (uint8_t)tensor->rank;
    for (int d = 0; d < tensor->rank; d++)
        out->size[d] = tensor->size[d] == OPAQUE_MODEL_DERIVED ? 0
                       : tensor->size[d] < 0                   ? sizes[-1 - tensor->size[d]]
                                                               : tensor->size[d];
    return 0;
}

static int type_of_output(int output, const int64_t *sizes, opq_type *out)
{
    if (type_of(&library->info->outputs[output], sizes, out) != 0)
        return 2;
    return library->shape(sizes, output, out->size) == OPAQUE_MODEL_OK ? 0 : fail(library->error(), NULL);
}

static int64_t bytes_of(const opq_type *type)
{
    int64_t bytes = opq_dtype_bytes((opq_dtype)type->dtype);
    for (int d = 0; d < type->rank; d++)
        bytes *= type->size[d];
    return bytes;
}

static void show(const opaque_model_tensor *tensor, const opq_type *type, const void *data)
{
    int64_t count = bytes_of(type) / opq_dtype_bytes((opq_dtype)type->dtype);
    printf("%s %s[", tensor->name, tensor->dtype);
    for (int d = 0; d < type->rank; d++)
        printf("%s%lld", d ? "," : "", (long long)type->size[d]);
    printf("]");
    for (int64_t i = 0; i < count && i < SHOWN; i++)
        switch ((opq_dtype)type->dtype) {
        case OPQ_f32: printf(" %.6g", (double)((const float *)data)[i]); break;
        case OPQ_f64: printf(" %.6g", ((const double *)data)[i]); break;
        case OPQ_i64: printf(" %lld", (long long)((const int64_t *)data)[i]); break;
        case OPQ_i32: printf(" %d", ((const int32_t *)data)[i]); break;
        case OPQ_bool: printf(" %d", ((const uint8_t *)data)[i]); break;
        default: break;
        }
    printf("%s\n", count > SHOWN ? " ..." : "");
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int run(opaque_model *model, const options *o, const void **inputs, void **outputs)
{
    int count = o->repeat > 0 ? o->repeat : 1;
    double *times = calloc((size_t)count, sizeof *times);
    int code = times ? 0 : OPAQUE_MODEL_NO_MEMORY;
    for (int i = 0; i < count && code == 0; i++) {
        double start = opq_now();
        code = library->run(model, o->sizes, inputs, outputs);
        times[i] = 1e3 * (opq_now() - start);
    }
    if (code != 0) {
        (void)fail(library->error(), NULL);
    } else if (o->repeat > 0) {
        double first = times[0];
        qsort(times, (size_t)count, sizeof *times, compare);
        printf("first %.3f ms, median of %d %.3f ms (%.3f to %.3f)\n", first, count, times[count / 2], times[0],
               times[count - 1]);
    }
    free(times);
    return code;
}

static int read_inputs(const options *o, const void **inputs)
{
    const opaque_model_info *info = library->info;
    for (int i = 0; i < info->input_count; i++) {
        opq_type type;
        void *data = NULL;
        if (type_of(&info->inputs[i], o->sizes, &type) != 0)
            return 2;
        if (o->inputs[i] == NULL)
            return fail("no file is given for input", info->inputs[i].name);
        if (opq_npy_read(o->inputs[i], &type, &data) != OPQ_OK)
            return fail(opq_error(), NULL);
        inputs[i] = data;
    }
    return 0;
}

static int make_outputs(const options *o, void **outputs)
{
    const opaque_model_info *info = library->info;
    for (int i = 0; i < info->output_count; i++) {
        opq_type type;
        if (type_of_output(i, o->sizes, &type) != 0)
            return 2;
        outputs[i] = calloc(1, (size_t)bytes_of(&type) + 1);
        if (outputs[i] == NULL)
            return fail("out of memory", NULL);
    }
    return 0;
}

static int give_outputs(const options *o, void *const *outputs)
{
    const opaque_model_info *info = library->info;
    for (int i = 0; i < info->output_count; i++) {
        opq_type type;
        (void)type_of_output(i, o->sizes, &type);
        if (o->outputs[i] == NULL)
            show(&info->outputs[i], &type, outputs[i]);
        else if (opq_npy_write(o->outputs[i], &type, outputs[i]) != OPQ_OK)
            return fail(opq_error(), NULL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static options o = {.threads = 1};
    static const void *inputs[TENSORS_MAX];
    static void *outputs[TENSORS_MAX];
    if (argc < 2 || argc % 2 != 0)
        return fail(
            "usage: opq-run MODEL [--input [NAME=]FILE.npy]... [--size NAME=N]... [--output [NAME=]FILE.npy]...",
            "[--weights FILE] [--threads N] [--repeat N]");
    o.model = argv[1];
    if (open_library(o.model) != 0)
        return 2;
    if (library->info->input_count > TENSORS_MAX || library->info->output_count > TENSORS_MAX ||
        library->info->size_count > SIZES_MAX)
        return fail("the model has too many tensors", NULL);
    for (int i = 2; i < argc; i += 2)
        if (take_option(&o, argv[i], argv[i + 1]) != 0)
            return 2;
    opaque_model *model = NULL;
    if (library->open(o.weights, o.threads, &model) != 0)
        return fail(library->error(), NULL);
    int code = read_inputs(&o, inputs);
    code = code ? code : make_outputs(&o, outputs);
    code = code ? code : run(model, &o, inputs, outputs);
    code = code ? code : give_outputs(&o, outputs);
    library->close(model);
    for (int i = 0; i < TENSORS_MAX; i++) {
        free((void *)inputs[i]);
        free(outputs[i]);
    }
    return code;
}
