/* Concurrent callers get the same results as one alone; so does a child that is forked during their calls.
 *
 *   test_threads [--no-fork]   an emulator may not survive the fork of a program with threads
 */
#include <pthread.h>
#include <string.h>

#if !defined(_WIN32) && !defined(__wasm__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "cases.h"
#include "system.h"

enum { CALLERS = 8, CALLS = 6, ROUNDS = 10, FORKS = 20, CHILD_SECONDS = 20 };

/* Large enough for the pool: two decode regimes, whose chunks are shared out, and four others. */
static const int numbers[CALLS] = {70, 98, 144, 175, 212, 252};
static uint64_t expected[CALLS];

/* An allocator without locks, as a child must not wait for one that another thread held at the fork. (The C library
 * handles that; a sanitizer does not.) The child never frees the other threads' pieces; there are enough. */
enum { PIECES = 4 * CALLERS, PIECE_BYTES = 4 << 20 };
static _Alignas(64) char pieces[PIECES][PIECE_BYTES];
static int taken[PIECES]; /* atomic */

static void *allocate(size_t bytes)
{
    for (int n = 0; n < PIECES && bytes <= PIECE_BYTES; n++)
        if (__atomic_exchange_n(&taken[n], 1, __ATOMIC_ACQUIRE) == 0) return pieces[n];
    return NULL;
}

static void release(void *memory)
{
    const ptrdiff_t n = ((char *)memory - pieces[0]) / PIECE_BYTES;
    __atomic_store_n(&taken[n], 0, __ATOMIC_RELEASE);
}

/* One caller's arrays, for all calls. The main thread alone creates and checks the first caller's. */
typedef struct {
    test_case cases[CALLS];
    int number, stop; /* stop: atomic */
    int wrong;        /* calls that failed, or gave other bits */
} caller;

static void make_caller(caller *c, int number)
{
    *c = (caller){.number = number};
    for (int n = 0; n < CALLS; n++) {
        case_make(&c->cases[n], numbers[n]);
        c->cases[n].args.num_threads = 2 + number % 2;
    }
}

static void free_caller(caller *c)
{
    for (int n = 0; n < CALLS; n++) case_free(&c->cases[n]);
}

/* All cases, each caller beginning with another. Returns how many went wrong. */
static int call_all(caller *c)
{
    attn_error error;
    int wrong = 0;
    for (int n = 0; n < CALLS; n++) {
        const int at = (n + c->number) % CALLS;
        const int good = case_compute(&c->cases[at], &error) == ATTN_OK;
        wrong += !good || tensor_hash(&c->cases[at].output) != expected[at];
    }
    return wrong;
}

static int there; /* atomic: threads being created may hold the allocator's lock */

static void wait_for_all(void)
{
    __atomic_add_fetch(&there, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&there, __ATOMIC_ACQUIRE) < CALLERS + 1) attn_yield();
}

static void *call_until_stopped(void *argument)
{
    caller *c = argument;
    wait_for_all();
    for (int round = 0; round < ROUNDS || !__atomic_load_n(&c->stop, __ATOMIC_RELAXED); round++)
        c->wrong += call_all(c);
    return NULL;
}

/* The child has the pool's state without its threads. An alarm ends a child that waits for them. */
static void claim_child_computes(caller *own)
{
#if defined(_WIN32) || defined(__wasm__) /* which have no fork */
    (void)own;
#else
    const pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_SECONDS);
        _exit(call_all(own) == 0 ? 0 : 1);
    }
    int status = -1;
    CLAIM(child > 0 && waitpid(child, &status, 0) == child, "no child");
    CLAIM(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child %s %d",
          WIFSIGNALED(status) ? "was stopped by signal" : "found other bits, status",
          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
#endif
}

/* A host's threads: as many as asked for, or, each second time, the calling one alone. */
static int teams, in_team; /* how often it was called, and whether it is being called */

typedef struct {
    void (*work)(void *);
    void *data;
} team_member;

static void *work_as_member(void *argument)
{
    const team_member *member = argument;
    member->work(member->data);
    return NULL;
}

static void team(void (*work)(void *), void *data, unsigned threads, unsigned flags)
{
    enum { MOST = 8 };
    pthread_t members[MOST];
    team_member member = {work, data};
    unsigned started = 0;
    CLAIM(threads >= 2 && threads <= MOST && flags == 0, "a team of %u, flags %u", threads, flags);
    if (teams++ % 2 == 0)
        while (started < threads - 1 && pthread_create(&members[started], NULL, work_as_member, &member) == 0)
            started++;
    in_team = 1;
    work(data);
    in_team = 0;
    while (started > 0) pthread_join(members[--started], NULL);
}

#if defined(_WIN32) || defined(__wasm__)
static void claim_child_leaves_a_team(caller *own) { (void)own; }
#else
/* Forked by the host when it is asked while the team works, a child stops with ATTN_FORKED, and can call again. */
static pid_t forked; /* -1: not yet */

static int fork_once(void)
{
    if (in_team && forked < 0) {
        forked = fork();
        if (forked == 0) alarm(CHILD_SECONDS);
    }
    return 0;
}

static void claim_child_leaves_a_team(caller *own)
{
    attn_error error;
    attn_status status = ATTN_OK;
    attn_set_hooks(&(attn_hooks){allocate, release, fork_once});
    forked = -1;
    for (int64_t until = attn_now() + INT64_C(10000000000); forked < 0 && attn_now() < until;)
        for (int n = 0; n < CALLS && forked < 0; n++) status = case_compute(&own->cases[n], &error);
    if (forked == 0) _exit(status == ATTN_FORKED && call_all(own) == 0 ? 0 : 1);
    attn_set_hooks(&(attn_hooks){allocate, release, NULL});
    int exit_status = -1;
    CLAIM(status == ATTN_OK, "the parent has failed: %s", error.message);
    CLAIM(forked > 0 && waitpid(forked, &exit_status, 0) == forked, "no child");
    CLAIM(exit_status == 0, "a child that left a team: status %d", exit_status);
}
#endif

static void claim_team_computes(caller *own, int forks)
{
    attn_suggest_threads((attn_suggestion){5, team}); /* the calls ask for three */
    CLAIM(call_all(own) == 0, "a team gives other bits");
    CLAIM(teams > 0, "the team was not called");
    if (forks > 0) claim_child_computes(own); /* in a pool of its own */
    if (forks > 0) claim_child_leaves_a_team(own);
    const int called = teams;
    attn_suggest_threads((attn_suggestion){2, team});
    CLAIM(call_all(own) == 0, "beside a smaller team there are other bits");
    CLAIM(teams == called, "a team of two was called for three");
    attn_suggest_threads((attn_suggestion){0});
}

int main(int count, char **arguments)
{
    const int forks = count > 1 && strcmp(arguments[1], "--no-fork") == 0 ? 0 : FORKS;
    static caller own, others[CALLERS];
    pthread_t threads[CALLERS];
    attn_error error = {""};

    attn_set_hooks(&(attn_hooks){allocate, release, NULL});
    make_caller(&own, 0);
    for (int n = 0; n < CALLS; n++) {
        own.cases[n].args.num_threads = 1;
        CLAIM(case_compute(&own.cases[n], &error) == ATTN_OK, "%s: %s", own.cases[n].text, error.message);
        expected[n] = tensor_hash(&own.cases[n].output);
        own.cases[n].args.num_threads = 3;
    }
    CLAIM(call_all(&own) == 0, "three threads give other bits than one");
    if (forks > 0) claim_child_computes(&own); /* nobody else is calling; the pool is parked */
    claim_team_computes(&own, forks);

    for (int n = 0; n < CALLERS; n++) {
        make_caller(&others[n], n);
        if (pthread_create(&threads[n], NULL, call_until_stopped, &others[n]) != 0) return 2;
    }
    wait_for_all();
    for (int n = 0; n < forks; n++) {
        claim_child_computes(&own);
        CLAIM(call_all(&own) == 0, "the parent has other bits after a fork");
    }
    for (int n = 0; n < CALLERS; n++) {
        __atomic_store_n(&others[n].stop, 1, __ATOMIC_RELAXED);
        pthread_join(threads[n], NULL);
        CLAIM(others[n].wrong == 0, "caller %d: %d calls went wrong", n, others[n].wrong);
        free_caller(&others[n]);
    }
    free_caller(&own);
    return report(forks > 0 ? "test_threads" : "without forks");
}
