/* Network, ipc and uts namespaces made ahead of need. */
#ifndef SF_SPACES_H
#define SF_SPACES_H

enum { SPACES = 3 };

/* Makes them, owned by the user namespace, loopback up. Fills in a descriptor each, or -1 all.
 * Returns 0 or a negative errno. */
int spaces_make(int userns, int spaces[SPACES]);

/* Closes what is open. */
void spaces_drop(int spaces[SPACES]);

/* Enters them; for a process that is root in the user namespace that owns them. */
int spaces_enter(const int spaces[SPACES]);

/* Brings up the loopback device of the network namespace that the caller is in. */
int spaces_loopback_up(void);

#endif
