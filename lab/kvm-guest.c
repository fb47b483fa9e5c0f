/*
 * A virtual machine of 8 MiB that uses every third page of its upper half, one lap for each line of the input.
 *
 * In: lines. Out: the host's address of the upper half, in hexadecimal; then "lap" after each lap. Must not: touch that memory
 * itself after its start, so that what is seen of it is the virtual machine's doing.
 *
 * From the kernel's documentation of the interface (virt/kvm/api.rst).
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define BYTES (8u << 20)
#define UPPER (4u << 20)
#define STRIDE (3u * 4096)

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(void)
{
	/* mov edi, UPPER; mov ecx, laps; 1: mov al, [edi]; add edi, STRIDE; dec ecx; jnz 1b; out 0x10, al; jmp start */
	unsigned char code[] = { 0xbf, 0, 0, 0, 0, 0xb9, 0, 0, 0, 0, 0x8a, 0x07, 0x81, 0xc7, 0, 0, 0, 0, 0x49, 0x75, 0xf5, 0xe6, 0x10, 0xeb, 0xe7 };
	unsigned int start = UPPER, pages = (BYTES - UPPER + STRIDE - 1) / STRIDE, stride = STRIDE;
	unsigned char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct kvm_userspace_memory_region region = { .memory_size = BYTES };
	struct kvm_regs regs = { .rflags = 2 };
	struct kvm_sregs sregs;
	struct kvm_run *run;
	int kvm, machine, processor, size;
	char line[64];

	if (memory == MAP_FAILED)
		return fail("mmap");
	madvise(memory, BYTES, MADV_NOHUGEPAGE);
	memset(memory, 1, BYTES);
	memcpy(code + 1, &start, 4);
	memcpy(code + 6, &pages, 4);
	memcpy(code + 14, &stride, 4);
	memcpy(memory, code, sizeof(code));
	kvm = open("/dev/kvm", O_RDWR);
	if (kvm < 0)
		return fail("/dev/kvm");
	machine = ioctl(kvm, KVM_CREATE_VM, 0);
	region.userspace_addr = (unsigned long)memory;
	if (machine < 0 || ioctl(machine, KVM_SET_USER_MEMORY_REGION, &region))
		return fail("KVM_CREATE_VM");
	processor = ioctl(machine, KVM_CREATE_VCPU, 0);
	size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (processor < 0 || size < 0)
		return fail("KVM_CREATE_VCPU");
	run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, processor, 0);
	if (run == MAP_FAILED || ioctl(processor, KVM_GET_SREGS, &sregs))
		return fail("KVM_GET_SREGS");
	/* Protected mode, flat segments of 4 GiB, no paging. */
	sregs.cr0 |= 1;
	sregs.cs = (struct kvm_segment){ .limit = ~0u, .selector = 8, .type = 11, .present = 1, .db = 1, .s = 1, .g = 1 };
	sregs.ds = (struct kvm_segment){ .limit = ~0u, .selector = 16, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1 };
	sregs.es = sregs.ss = sregs.fs = sregs.gs = sregs.ds;
	if (ioctl(processor, KVM_SET_SREGS, &sregs) || ioctl(processor, KVM_SET_REGS, &regs))
		return fail("KVM_SET_REGS");
	printf("%lx\n", (unsigned long)memory + UPPER);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (ioctl(processor, KVM_RUN, 0))
			return fail("KVM_RUN");
		if (run->exit_reason != KVM_EXIT_IO) {
			fprintf(stderr, "the virtual machine stopped with reason %u\n", run->exit_reason);
			return 1;
		}
		puts("lap");
		fflush(stdout);
	}
	return 0;
}
