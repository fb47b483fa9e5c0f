// Holds records of which the first EVERY-th part is read, and makes garbage all the time, so that the collector walks over what is held. Counts into a mapped file
// until it is ended. Usage: collected COUNTER MIB EVERY.
package main

import (
	"math/rand"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"unsafe"
)

type entry struct {
	number int
	value  []byte
	next   *entry
}

func number(at int) int {
	value, err := strconv.Atoi(os.Args[at])
	if err != nil {
		panic(err)
	}
	return value
}

func made(at int, next *entry) *entry {
	// Of a kilobyte a quarter does not repeat.
	value := make([]byte, 1024)
	for place := 0; place < 256; place += 8 {
		value[place] = byte(rand.Int())
	}
	return &entry{at, value, next}
}

func main() {
	count := number(2) * 1024 * 8 / 9
	hot := count / number(3)
	file, err := os.OpenFile(os.Args[1], os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	mapped, err := syscall.Mmap(int(file.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	counter := (*uint64)(unsafe.Pointer(&mapped[0]))
	held := make([]*entry, count)
	var last *entry
	for at := range held {
		held[at] = made(at, last)
		last = held[at]
	}
	for done := uint64(0); ; {
		for turn := 0; turn < 100; turn, done = turn+1, done+1 {
			at := rand.Intn(hot)
			if held[at].number != at {
				panic("another entry")
			}
			// One in ten is replaced: what was held becomes garbage.
			fresh := made(at, nil)
			if done%10 == 0 {
				held[at] = fresh
			}
		}
		atomic.StoreUint64(counter, done)
	}
}
