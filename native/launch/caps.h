/* The capabilities that root inside a sandbox keeps, and how all others go. */
#ifndef SF_CAPS_H
#define SF_CAPS_H

/* Bounds, permits and makes effective only what a sandbox may have. 0 or -errno. */
int caps_reduce(void);

#endif
