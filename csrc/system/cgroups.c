/* The CPU quota of Linux's control groups. See system.h. */
#include "system.h"

#if defined(__linux__)
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads up to two numbers from the start of a control group's file; returns how many it found. */
static int read_numbers(const char *root, const char *group, const char *name, long long *first, long long *second)
{
    char path[1000], line[100], *middle, *end;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/%s", root, group, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    if (fgets(line, sizeof line, file) == NULL) *line = '\0';
    fclose(file);
    const long long one = strtoll(line, &middle, 10), other = strtoll(middle, &end, 10); /* too large ones: the most */
    const int found = middle == line ? 0 : end == middle ? 1 : 2;
    if (found > 0) *first = one;
    if (found > 1) *second = other;
    return found;
}

/* Quota over period of one control group, rounded up. 0 without a quota: "max" in version 2, -1 in version 1. */
static int quota_of(const char *root, const char *group)
{
    long long quota = 0, period = 0, unused;
    if (read_numbers(root, group, "cpu.max", &quota, &period) != 2) {
        read_numbers(root, group, "cpu.cfs_quota_us", &quota, &unused);
        read_numbers(root, group, "cpu.cfs_period_us", &period, &unused);
    }
    if (quota <= 0 || period <= 0) return 0;
    const long long cpus = (quota - 1) / period + 1;
    return cpus < INT_MAX ? (int)cpus : INT_MAX;
}

/* The smallest quota from a group up to the root of its hierarchy, the first `hierarchy` characters of `group`. */
static int tightest_quota(const char *root, char *group, size_t hierarchy)
{
    int least = 0;
    for (;;) {
        const int quota = quota_of(root, group);
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
        char *slash = strrchr(group + hierarchy, '/');
        if (slash == NULL) return least;
        *slash = '\0';
    }
}

/* The smallest quota over this process's groups. Version 2 has one group, "0::/group"; in version 1 the group of the
 * cpu controller counts, such as "4:cpu,cpuacct:/group". In a container the path may be the host's and have no files;
 * the root's files are then the container's. */
int attn_cgroup_quota(const char *root)
{
    char path[1000], line[512], controllers[512] = ",", group[512] = "/cpu";
    int least = 0;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        int quota = 0;
        if (sscanf(line, "0::%500[^\n]", group + 4) == 1) {
            quota = tightest_quota(root, group + 4, 0);
        } else if (sscanf(line, "%*d:%500[^:]:%500[^\n]", controllers + 1, group + 4) == 2) {
            if (strstr(strcat(controllers, ","), ",cpu,") != NULL) quota = tightest_quota(root, group, 4);
        }
        if (quota > 0 && (least == 0 || quota < least)) least = quota;
    }
    fclose(file);
    return least;
}
#else
int attn_cgroup_quota(const char *root)
{
    (void)root;
    return 0;
}
#endif
