/* Tags sequences of two lengths with the model that export.py wrote. */
#include "tagger.h"

#include <stdio.h>

int main(void)
{
    opaque_model *model;
    if (tagger_open(NULL, 1, &model) != OPAQUE_MODEL_OK) {
        fprintf(stderr, "%s\n", tagger_error());
        return 1;
    }
    static const int64_t lengths[] = {5, 24};
    int code = OPAQUE_MODEL_OK;
    for (int l = 0; l < 2 && code == OPAQUE_MODEL_OK; l++) {
        int64_t tokens[24], tags[24];
        for (int64_t i = 0; i < lengths[l]; i++)
            tokens[i] = i * 7 % 100;
        code = tagger_run(model, lengths[l], tokens, tags);
        if (code != OPAQUE_MODEL_OK)
            fprintf(stderr, "%s\n", tagger_error());
        for (int64_t i = 0; i < lengths[l] && code == OPAQUE_MODEL_OK; i++)
            printf("%lld%s", (long long)tags[i], i + 1 < lengths[l] ? " " : "\n");
    }
    tagger_close(model);
    return code;
}
