/* How many CPUs this process may use. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include "parallel.h"

static int affinity(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

#if defined(__linux__)
/* Quota over period of one control group, rounded up; 0 when there is none. */
static int quota_of(const char *group)
{
    char path[600];
    long long quota, period;
    int found = 0;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        found = fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
        fclose(file);
    }
    return found ? (int)((quota + period - 1) / period) : 0;
}

/* The tightest quota on the way from this process's group up to the root (version 2 of cgroups). */
static int cgroup_quota(void)
{
    char line[512], group[512] = "";
    int least = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "0::%500[^\n]", group) == 1) break;
    fclose(file);

    for (;;) {
        int quota = quota_of(strcmp(group, "/") == 0 ? "" : group);
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
        char *slash = strrchr(group, '/');
        if (slash == NULL) return least;
        *slash = '\0';
    }
}
#else
static int cgroup_quota(void) { return 0; }
#endif

int attn_usable_cpus(void)
{
    int cpus = affinity(), quota = cgroup_quota();
    if (quota > 0 && quota < cpus) cpus = quota;
    return cpus > 0 ? cpus : 1;
}
