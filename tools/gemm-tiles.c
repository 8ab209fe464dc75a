/* gemm-tiles TARGET FOLDER: the matrix engine's tiles for a target, one object for each kind of element. A step of the build. */
#include "codegen_llvm/gemm_kernel.h"

#include <stdio.h>

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: gemm-tiles TARGET FOLDER\n");
        return 2;
    }
    for (int element = 0; element < OPQ_GEMM_ELEMENTS; element++) {
        char path[4096];
        const char *name = opq_gemm_element_name((opq_gemm_element)element);
        int length = snprintf(path, sizeof path, "%s/%s_%s.o", arguments[2], arguments[1], name);
        if (length >= (int)sizeof path || opq_gemm_tiles_object(arguments[1], (opq_gemm_element)element, path) != OPQ_OK) {
            fprintf(stderr, "gemm-tiles: %s\n",
                    length < (int)sizeof path ? opq_error() : "the folder's name is too long");
            return 1;
        }
    }
    return 0;
}
