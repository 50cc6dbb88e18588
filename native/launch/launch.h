#ifndef SF_LAUNCH_H
#define SF_LAUNCH_H

/* Runs the launcher until it is told to quit or has been alone for too long. */
int launcher_main(const char *run_dir, unsigned long orphan_seconds);

#endif
