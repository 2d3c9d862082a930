// Prints variants of a program: syzkaller's own mutator changes a few of its calls, chosen by a seed.
//
//	syz-mutate PROGRAM WORDS
//
// WORDS is a file with the bug's dictionary, as for guest/inside/vary.c. Orders on stdin, answers on
// stdout:
//
//	SEED COUNT MASK       make COUNT variants from SEED on, each with those rounds of changes whose
//	                      bit is set in MASK
//	  #variant SEED MASK
//	  #round BIT          the program as it is after this round follows
//
// The program itself comes first, after `#program`; after all orders comes `#end`.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand"
	"os"
	"reflect"

	"github.com/google/syzkaller/prog"
	_ "github.com/google/syzkaller/sys"
)

const (
	mostRounds = 3
	tries      = 20
	// Bytes of a program: larger ones slow down guests.
	largest = 8 << 10
)

type mutator struct {
	table   *prog.ChoiceTable
	values  []uint64
	fields  []field
	strings [][]byte
}

type field struct{ shift, width uint }

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: syz-mutate PROGRAM WORDS"))
	}
	target, err := prog.GetTarget("linux", "amd64")
	fail(err)
	text, err := os.ReadFile(os.Args[1])
	fail(err)
	program, err := target.Deserialize(text, prog.NonStrict)
	fail(err)
	words, err := os.Open(os.Args[2])
	fail(err)
	m := &mutator{}
	m.read(words)
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintf(out, "#program\n%s", program.Serialize())
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		var seed, count, mask int64
		if _, err := fmt.Sscan(orders.Text(), &seed, &count, &mask); err != nil {
			fail(err)
		}
		// To weigh all calls takes seconds, so only if there is something to change.
		if m.table == nil && len(program.Calls) > 0 {
			m.table = target.DefaultChoiceTable()
		}
		for end := seed + count; seed < end && len(program.Calls) > 0; seed++ {
			m.print(out, program, seed, mask)
			out.Flush()
		}
	}
	fmt.Fprintln(out, "#end")
	out.Flush()
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (m *mutator) read(file *os.File) {
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var value uint64
		var part field
		var text string
		if _, err := fmt.Sscanf(lines.Text(), "value %x", &value); err == nil {
			m.values = append(m.values, value)
		}
		if _, err := fmt.Sscanf(lines.Text(), "field %d %d", &part.shift, &part.width); err == nil {
			m.fields = append(m.fields, part)
		}
		if _, err := fmt.Sscanf(lines.Text(), "string %s", &text); err == nil {
			if data, err := hex.DecodeString(text); err == nil {
				m.strings = append(m.strings, data)
			}
		}
	}
}

func (m *mutator) print(out *bufio.Writer, p *prog.Prog, seed, mask int64) {
	// Half of the variants have one change, a quarter two, a quarter three.
	rounds := rand.New(rand.NewSource(seed)).Intn(4)
	if rounds == 0 {
		rounds = 1
	}
	fmt.Fprintf(out, "#variant %d %d\n", seed, mask)
	for round := 0; round < rounds; round++ {
		if mask>>uint(round)&1 == 0 {
			continue
		}
		// The source of a round does not depend on the other rounds.
		if q := m.round(p, seed*mostRounds+int64(round)+1); q != nil {
			p = q
			fmt.Fprintf(out, "#round %d\n%s", round, p.Serialize())
		}
	}
}

// round returns the program with one changed call; with more, if no try changed only one.
func (m *mutator) round(p *prog.Prog, seed int64) *prog.Prog {
	random := rand.New(rand.NewSource(seed))
	var near *prog.Prog
	for try := 0; try < tries; try++ {
		q := p.Clone()
		if !m.change(q, random) {
			continue
		}
		count := differences(p, q)
		if count == 1 {
			return q
		}
		if count > 1 && near == nil {
			near = q
		}
	}
	return near
}

func differences(p, q *prog.Prog) int {
	a, b := bytes.Split(p.Serialize(), []byte("\n")), bytes.Split(q.Serialize(), []byte("\n"))
	for len(a) > 0 && len(b) > 0 && bytes.Equal(a[0], b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && bytes.Equal(a[len(a)-1], b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a) > len(b) {
		return len(a)
	}
	return len(b)
}

// change changes a program in place; it returns false if the result is of no use.
func (m *mutator) change(p *prog.Prog, random *rand.Rand) (useful bool) {
	// Mutators of some revisions panic about some programs.
	defer func() {
		if recover() != nil {
			useful = false
		}
	}()
	if random.Intn(2) > 0 || !m.replace(p, random) {
		// Most variants make the same calls; some make one or two more.
		calls := len(p.Calls)
		if random.Intn(4) == 0 {
			calls += 2
		}
		mutate(p, rand.NewSource(random.Int63()), calls, m.table)
	}
	return len(p.Calls) > 0 && len(p.Serialize()) <= largest
}

// mutate calls Prog.Mutate(source, calls, table, ..., corpus). Since 2022 (prog: add no_mutate), it
// has an argument more; the zero values of all others mean none.
func mutate(p *prog.Prog, source rand.Source, calls int, table *prog.ChoiceTable) {
	method := reflect.ValueOf(p).MethodByName("Mutate")
	arguments := []reflect.Value{
		reflect.ValueOf(source), reflect.ValueOf(calls), reflect.ValueOf(table),
	}
	for at := len(arguments); at < method.Type().NumIn(); at++ {
		arguments = append(arguments, reflect.Zero(method.Type().In(at)))
	}
	method.Call(arguments)
}

// replace puts a word of the dictionary somewhere; it returns false if there is no place for any.
func (m *mutator) replace(p *prog.Prog, random *rand.Rand) bool {
	var places []func()
	for _, call := range p.Calls {
		prog.ForeachArg(call, func(arg prog.Arg, _ *prog.ArgCtx) {
			if arg.Type() == nil || arg.Dir() == prog.DirOut {
				return
			}
			switch typ := arg.Type().(type) {
			case *prog.IntType, *prog.FlagsType, *prog.LenType:
				if number, ok := arg.(*prog.ConstArg); ok && len(m.values) > 0 {
					all := uint64(1)<<typ.TypeBitSize() - 1
					places = append(places, func() { number.Val = m.value(random, number.Val) & all })
				}
			case *prog.BufferType:
				data, ok := arg.(*prog.DataArg)
				isBlob := typ.Kind == prog.BufferBlobRand || typ.Kind == prog.BufferBlobRange
				if ok && isBlob && len(data.Data()) > 0 && len(m.values) > 0 {
					places = append(places, func() { m.overwrite(random, data.Data()) })
				}
			}
		})
	}
	if len(places) == 0 {
		return false
	}
	places[random.Intn(len(places))]()
	return true
}

// early returns an index: the first words are those of the function that crashes.
func early(random *rand.Rand, count int) int {
	first, second := random.Intn(count), random.Intn(count)
	if first < second {
		return first
	}
	return second
}

// value returns a word, or `old` with a word in one of its bit fields.
func (m *mutator) value(random *rand.Rand, old uint64) uint64 {
	word := m.values[early(random, len(m.values))]
	if len(m.fields) == 0 || random.Intn(2) == 0 {
		return word + uint64(random.Intn(3)) - 1
	}
	part := m.fields[early(random, len(m.fields))]
	all := uint64(1)<<part.width - 1
	for try := 0; word > all && try < 8; try++ {
		word = m.values[early(random, len(m.values))]
	}
	word += uint64(random.Intn(3)) - 1
	return old&^(all<<part.shift) | (word&all)<<part.shift
}

// overwrite writes a word into the bytes, or a string at their begin.
func (m *mutator) overwrite(random *rand.Rand, data []byte) {
	if len(m.strings) > 0 && random.Intn(3) == 0 {
		copy(data, m.strings[random.Intn(len(m.strings))])
		return
	}
	word := make([]byte, 8)
	binary.LittleEndian.PutUint64(word, m.value(random, 0))
	size := 1 << uint(random.Intn(4))
	at := random.Intn(len(data)) / size * size
	copy(data[at:], word[:size])
}
