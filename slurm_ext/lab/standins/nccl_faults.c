/* What hardware.env makes go wrong in a communicator. The file is read anew each time, so a fault can come and go. */
#define _GNU_SOURCE
#include "nccl.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

const struct fm_faults *fm_faults(const struct ncclComm *comm, const struct fm_hardware *hardware)
{
    return fm_faults_of(hardware, comm->gpu.number);
}

static int strikes(const struct fm_place *place, int step)
{
    return step ? place->step && step >= place->step : place->init;
}

static ncclResult_t known_result(const struct fm_hardware *hardware, int code)
{
    int most = hardware->nccl_version >= 23000 ? ncclTimeout : ncclInProgress;
    return code > 0 && code <= most && code != ncclInProgress ? (ncclResult_t)code : ncclInternalError;
}

/* Traffic heats: a delay may begin only so long after the first collective of the communicator. */
static int warm(struct ncclComm *comm, int after_ms)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!comm->first_run.tv_sec)
        comm->first_run = now;
    return (now.tv_sec - comm->first_run.tv_sec) * 1000 + (now.tv_nsec - comm->first_run.tv_nsec) / 1000000 >= after_ms;
}

/* Before a collective (the `step`th of this communicator), or with step 0 before the communicator is made. */
ncclResult_t fm_strike(struct ncclComm *comm, const struct fm_hardware *hardware, int step)
{
    const struct fm_faults *faults = fm_faults(comm, hardware);
    if (strikes(&faults->crash, step))
        abort();
    if (strikes(&faults->stop, step))
        kill(getpid(), SIGSTOP);
    if (*hardware->nccl_dstate_file && strikes(&faults->dstate, step))
        fm_write_to(hardware->nccl_dstate_file);
    if (strikes(&faults->hang, step)) {
        fm_until_aborted(comm);
        return ncclInternalError;
    }
    if (strikes(&faults->error, step)) {
        ncclResult_t result = known_result(hardware, faults->error_code);
        fm_warn(comm->device, "init.cc:2401", "fmslurm lab: error %d on purpose", result);
        return result;
    }
    int wait_ms = step ? faults->delay_ms : faults->join_delay_ms;
    if (step && !warm(comm, faults->delay_after_ms))
        wait_ms = 0;
    return wait_ms > 0 ? fm_pause(comm, wait_ms) : ncclSuccess;
}

/* The node's rate is shared by those of its ranks that send to other nodes at once; a GPU's rate is its own. */
int fm_rate_mbit(const struct ncclComm *comm, const struct fm_hardware *hardware, int shared)
{
    int own = fm_faults(comm, hardware)->rate_mbit, node = hardware->nccl.rate_mbit / (shared > 0 ? shared : 1);
    if (hardware->nccl.rate_mbit && !node)
        node = 1;
    return own && (!node || own < node) ? own : node;
}
