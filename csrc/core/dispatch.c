/* Chooses the instruction-set level once, by what the CPU and the operating system support, or by PYATTN_ISA. */
#include "dispatch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "error.h"

#define TABLE(isa) &attn_table_##isa,
static const attn_kernel_table *const compiled[] = {ATTN_ISA_LIST(TABLE) NULL};
#undef TABLE

#if defined(__x86_64__)
/* The bits of XCR0: the registers that the operating system saves. */
static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* By CPUID itself: __builtin_cpu_supports knows nothing in what some compilers link (zig), and F16C in few. macOS saves
 * the registers of AVX-512 only once a thread has used them, so that Macs get AVX2. */
static int machine_has(const char *isa)
{
    enum { AVX_REGISTERS = 0x6, AVX512_REGISTERS = 0xe6 };
    const unsigned basic = bit_FMA | bit_OSXSAVE | bit_AVX | bit_F16C;
    const unsigned wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    unsigned a, b, c, d;
    if (strcmp(isa, "scalar") == 0) return 1;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & basic) != basic) return 0;
    const unsigned saved = saved_registers();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return 0;
    if (strcmp(isa, "avx2") == 0) return (saved & AVX_REGISTERS) == AVX_REGISTERS;
    return (b & wide) == wide && (saved & AVX512_REGISTERS) == AVX512_REGISTERS;
}
#else
static int machine_has(const char *isa)
{
    (void)isa; /* scalar runs anywhere, and every arm64 has NEON */
    return 1;
}
#endif

const char *attn_isa_compiled(int index)
{
    int known = (int)(sizeof compiled / sizeof *compiled) - 1;
    return index >= 0 && index < known ? compiled[index]->name : NULL;
}

static const attn_kernel_table *available(int index)
{
    for (int i = 0; compiled[i] != NULL; i++)
        if (machine_has(compiled[i]->name) && index-- == 0) return compiled[i];
    return NULL;
}

const char *attn_isa_name(int index)
{
    const attn_kernel_table *table = index >= 0 ? available(index) : NULL;
    return table ? table->name : NULL;
}

static const attn_kernel_table *find(const char *name)
{
    const attn_kernel_table *table;
    for (int i = 0; (table = available(i)) != NULL; i++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

static const attn_kernel_table *chosen;
static char complaint[256];

/* Zen 5 and later have many line fill buffers: decode reads 37 GB/s in place of 32. */
int attn_prefetch_flags(void)
{
#if defined(__x86_64__)
    static int known = -1; /* two threads may both be first, and store the same value */
    unsigned a = 0, b, c, d;
    int flags = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (flags < 0) {
        const int amd = __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && __get_cpuid(1, &a, &b, &c, &d);
        flags = amd && (a >> 8 & 0xf) + (a >> 20 & 0xff) >= 0x1a ? ATTN_TO_L1 : 0; /* its family */
        __atomic_store_n(&known, flags, __ATOMIC_RELAXED);
    }
    return flags;
#else
    return 0;
#endif
}

/* Two threads may both be first: they compute and store the same value. */
static const attn_kernel_table *current(void)
{
    const attn_kernel_table *table = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
    if (table != NULL) return table;

    const char *wanted = getenv("PYATTN_ISA");
    if (wanted != NULL && *wanted != '\0') table = find(wanted);
    if (table == NULL) {
        table = available(0);
        if (wanted != NULL && *wanted != '\0')
            snprintf(complaint, sizeof complaint, "PYATTN_ISA=%.60s is not a level of this machine; using %s", wanted,
                     table->name);
    }
    __atomic_store_n(&chosen, table, __ATOMIC_RELEASE);
    return table;
}

const char *attn_isa(void) { return current()->name; }

const char *attn_isa_complaint(void)
{
    current();
    return *complaint ? complaint : NULL;
}

attn_status attn_set_isa(const char *name, attn_error *error)
{
    const attn_kernel_table *table = find(name);
    if (table == NULL)
        return attn_fail(error, ATTN_INVALID, "%.60s is not an instruction-set level of this machine", name);
    __atomic_store_n(&chosen, table, __ATOMIC_RELEASE);
    return ATTN_OK;
}

const attn_kernels *attn_kernels_for(attn_dtype dtype) { return dtype == ATTN_F64 ? current()->f64 : current()->f32; }
