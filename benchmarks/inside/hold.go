// Holds memory of which one piece in EVERY is read all the time. Usage: hold MIB SECONDS EVERY.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

func number(at int) int {
	value, err := strconv.Atoi(os.Args[at])
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	pieces, every := number(1)*16, number(3)
	ends := time.Now().Add(time.Duration(number(2)) * time.Second)
	held := make([][]byte, pieces)
	for at := range held {
		held[at] = make([]byte, 65536)
		state := uint64(at + 1)
		for place := range held[at] {
			// Of 64 bytes 16 do not repeat.
			if place%64 < 16 {
				state = state*6364136223846793005 + 1442695040888963407
				held[at][place] = byte(state >> 56)
			} else {
				held[at][place] = byte(at)
			}
		}
	}
	fmt.Println("held")
	sum, rounds := 0, 0
	for time.Now().Before(ends) {
		for at := 0; at < pieces; at += every {
			for place := 0; place < 65536; place += 512 {
				sum += int(held[at][place])
			}
		}
		rounds++
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(rounds, "rounds, sum", sum)
}
