/* Source lines and the interpreter lock, without PyTorch: plain C against CPython. */
#ifndef OPAQUE_REGISTRATION_LINES_H
#define OPAQUE_REGISTRATION_LINES_H

#include "opaque/opaque.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gives up the interpreter lock if the calling thread holds it, and takes it back. The pointer is NULL if it was not held. */
void *opq_python_unlock(void);
void opq_python_lock(void *state);

/* Id of the calling thread's innermost source line of the user's, outside installed packages, and below it of such a package; 0 if it runs no Python or lines are off.
 * The interpreter lock need not be held: nobody else changes this thread's frames while it is in here. */
uint32_t opq_line_here(void);
/* While someone looks, lines of this thread are told apart by the module they run in: a name's id (0: no more fit), and the one in force, 0
 * for none. Names are kept for good. */
int opq_scope_add(const char *name);
void opq_scope_set(int id);
/* A part of what a line's id stands for, see opq_line_part. Returns the length, 0 if unknown. Takes the interpreter lock. */
size_t opq_line_text(uint32_t line, opq_line_part part, char *out, size_t size);
/* Folders whose frames are never shown, but for packages installed in them; absolute path prefixes, called at import. At most 8 are kept. */
void opq_line_skip(const char *prefix);
/* Does this thread run Python at all? */
int opq_line_has_python(void);
void opq_line_enable(int on);

#ifdef __cplusplus
}

namespace opq
{

/* Without the interpreter lock as long as it lives: who waits for another thread's run, which may want that lock, must not hold it. */
class PythonUnlocked
{
  public:
    PythonUnlocked() : state_(opq_python_unlock()) {}
    ~PythonUnlocked() { opq_python_lock(state_); }
    PythonUnlocked(const PythonUnlocked &) = delete;
    PythonUnlocked &operator=(const PythonUnlocked &) = delete;

  private:
    void *state_;
};

} // namespace opq
#endif
#endif
