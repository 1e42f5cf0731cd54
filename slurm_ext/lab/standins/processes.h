/* Which processes hold a context on which simulated GPU. Each holds an abstract Unix socket that names node, GPU and
 * process: it needs no right, leaves no file, and ends with the process. */
#ifndef FM_PROCESSES_H
#define FM_PROCESSES_H

#include "hardware.h"

int fm_process_register(const struct fm_hardware *hardware, int gpu_number); /* descriptor to keep open, or -1 */
int fm_process_list(const struct fm_hardware *hardware, int gpu_number, int *pids, int most);

#endif
