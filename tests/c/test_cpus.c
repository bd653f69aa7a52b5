/* CPU quotas of control groups: files as Linux shows them, and malformed ones, in a temporary folder. */
#define _GNU_SOURCE
#include "harness.h"
#include "parallel.h"
#include "system.h"

#if defined(__linux__)
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file below sys/fs/cgroup, and its contents. */
typedef struct {
    const char *path, *text;
} file;

typedef struct {
    const char *what;
    int cpus;
    const char *groups; /* of /proc/self/cgroup; NULL: no such file */
    file files[5];
} tree;

#define NAME_50  "a-name-of-fifty-characters-which-is-not-too-long--"
#define NAME_250 NAME_50 NAME_50 NAME_50 NAME_50 NAME_50

static const tree trees[] = {
    {"no control groups", 0, NULL, {{"cpu.max", "100000 100000\n"}}},
    {"an empty list of groups", 0, "", {{"cpu.max", "100000 100000\n"}}},
    {"a group without files", 0, "0::/a\n", {{"b/cpu.max", "100000 100000\n"}}},

    {"version 2", 2, "0::/a\n", {{"a/cpu.max", "200000 100000\n"}}},
    {"the group of all", 2, "0::/\n", {{"cpu.max", "200000 100000\n"}}},
    {"a little more than two", 3, "0::/a\n", {{"a/cpu.max", "200001 100000\n"}}},
    {"a little less than two", 2, "0::/a\n", {{"a/cpu.max", "199999 100000\n"}}},
    {"a tenth", 1, "0::/a\n", {{"a/cpu.max", "10000 100000\n"}}},
    {"another period", 4, "0::/a\n", {{"a/cpu.max", "20000 5000\n"}}},
    {"max", 0, "0::/a\n", {{"a/cpu.max", "max 100000\n"}}},
    {"a name with spaces and colons", 2, "0::/a b:c\n", {{"a b:c/cpu.max", "200000 100000\n"}}},
    {"the tightest is its own", 2, "0::/a/b\n", {{"a/b/cpu.max", "200000 100000\n"}, {"a/cpu.max", "3 1\n"}}},
    {"the tightest is between",
     2,
     "0::/a/b/c\n",
     {{"a/b/c/cpu.max", "4 1\n"}, {"a/b/cpu.max", "2 1\n"}, {"a/cpu.max", "3 1\n"}}},
    {"the tightest is above max", 3, "0::/a/b\n", {{"a/b/cpu.max", "max 1\n"}, {"a/cpu.max", "3 1\n"}}},
    {"a sibling does not count", 3, "0::/a/b\n", {{"a/bc/cpu.max", "1 1\n"}, {"a/cpu.max", "3 1\n"}}},
    {"the host's name in a container", 1, "0::/host/id\n", {{"cpu.max", "1 1\n"}}},
    {"a name longer than a line", 2, "0::/a/" NAME_250 "/" NAME_250 NAME_250 "\n", {{"a/cpu.max", "2 1\n"}}},

    {"version 1",
     2,
     "5:memory:/m\n4:cpu,cpuacct:/a\n1:name=systemd:/s\n",
     {{"cpu/a/cpu.cfs_quota_us", "150000\n"}, {"cpu/a/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, the controller named last",
     1,
     "4:cpuacct,cpu:/a\n",
     {{"cpu/a/cpu.cfs_quota_us", "50000\n"}, {"cpu/a/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, without a quota",
     0,
     "4:cpu:/a\n",
     {{"cpu/a/cpu.cfs_quota_us", "-1\n"}, {"cpu/a/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, in a container",
     3,
     "4:cpu:/docker/id\n",
     {{"cpu/cpu.cfs_quota_us", "300000\n"}, {"cpu/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, above the controller's folder is nothing of its",
     0,
     "4:cpu:/a\n",
     {{"cpu.cfs_quota_us", "100000\n"}, {"cpu.cfs_period_us", "100000\n"}}},
    {"version 1, other controllers",
     0,
     "4:cpuset:/a\n3:cpuacct:/a\n",
     {{"cpu/a/cpu.cfs_quota_us", "100000\n"}, {"cpu/a/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, without a period", 0, "4:cpu:/a\n", {{"cpu/a/cpu.cfs_quota_us", "100000\n"}}},
    {"both versions, the first tighter",
     2,
     "4:cpu:/a\n0::/b\n",
     {{"cpu/a/cpu.cfs_quota_us", "2\n"}, {"cpu/a/cpu.cfs_period_us", "1\n"}, {"b/cpu.max", "3 1\n"}}},
    {"both versions, the second tighter",
     3,
     "4:cpu:/a\n0::/b\n",
     {{"cpu/a/cpu.cfs_quota_us", "4\n"}, {"cpu/a/cpu.cfs_period_us", "1\n"}, {"b/cpu.max", "3 1\n"}}},

    {"an empty file", 0, "0::/a\n", {{"a/cpu.max", ""}}},
    {"words", 0, "0::/a\n", {{"a/cpu.max", "as many as you like\n"}}},
    {"a quota without a period", 0, "0::/a\n", {{"a/cpu.max", "100000\n"}}},
    {"a period of 0", 0, "0::/a\n", {{"a/cpu.max", "100000 0\n"}}},
    {"a quota of 0", 0, "0::/a\n", {{"a/cpu.max", "0 100000\n"}}},
    {"a quota below 0", 0, "0::/a\n", {{"a/cpu.max", "-200000 100000\n"}}},
    {"more than an int", INT_MAX, "0::/a\n", {{"a/cpu.max", "17592186044415 1000\n"}}},
    {"more than any number", INT_MAX, "0::/a\n", {{"a/cpu.max", "99999999999999999999 100000\n"}}},
    {"lines that name no group",
     2,
     "\n:\n::::\n4:cpu\n4:cpu:\nno line of Linux's\n0::\n0::/a\n",
     {{"a/cpu.max", "2 1\n"}}},
};

/* Writes a file, with the folders that lead to it. */
static void put(const char *root, const char *folder, const char *name, const char *text)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *out = fopen(path, "w");
    CLAIM(out != NULL && fputs(text, out) >= 0 && fclose(out) == 0, "the test itself cannot write %s", path);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static void test_tree(const tree *t)
{
    char root[] = "/tmp/attn-test-cpus-XXXXXX";
    if (mkdtemp(root) == NULL) {
        CLAIM(0, "the test itself has no folder in /tmp");
        return;
    }
    if (t->groups != NULL) put(root, "proc/self", "cgroup", t->groups);
    for (const file *f = t->files; f->path != NULL; f++) put(root, "sys/fs/cgroup", f->path, f->text);
    const int cpus = attn_cgroup_quota(root);
    CLAIM(cpus == t->cpus, "%s: %d CPUs, not %d", t->what, cpus, t->cpus);
    CLAIM(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0, "%s was not removed", root);
}

static void test_trees(void)
{
    for (size_t n = 0; n < sizeof trees / sizeof *trees; n++) test_tree(&trees[n]);
}
#else
static void test_trees(void) {} /* only Linux has control groups */
#endif

/* On the real system: at least one CPU, and at most the quota. */
static void test_this_process(void)
{
    const int cpus = attn_usable_cpus(), quota = attn_cgroup_quota("");
    CLAIM(cpus >= 1 && (quota == 0 || cpus <= quota), "%d CPUs, a quota of %d", cpus, quota);
}

int main(void)
{
    test_trees();
    test_this_process();
    return report("test_cpus");
}
