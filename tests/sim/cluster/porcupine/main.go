// Porcupine's verdict on histories of a catalogue of topics: one JSON array of operations a line on standard input,
// "linearizable" or "broken" a line on standard output. The oracle of tests/sim/cluster/test_porcupine.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type action struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Value int    `json:"value"`
}

type operation struct {
	Client   string  `json:"client"`
	Called   int64   `json:"called"`
	Returned *int64  `json:"returned"`
	Action   action  `json:"action"`
	Answer   *string `json:"answer"`
}

type topic struct{ tag, setting int }

// what the catalogue does, and what it says
func do(topics map[string]topic, asked action) (map[string]topic, string) {
	found, there := topics[asked.Name]
	switch {
	case asked.Kind == "list":
		names := []string{"names"}
		for name := range topics {
			names = append(names, name)
		}
		sort.Strings(names[1:])
		return topics, strings.Join(names, " ")
	case asked.Kind == "create" && there:
		return topics, "exists"
	case asked.Kind == "create":
		return with(topics, asked.Name, &topic{asked.Value, 0}), "done"
	case !there:
		return topics, "missing"
	case asked.Kind == "describe":
		return topics, fmt.Sprintf("found %d %d", found.tag, found.setting)
	case asked.Kind == "delete":
		return with(topics, asked.Name, nil), "done"
	default:
		return with(topics, asked.Name, &topic{found.tag, asked.Value}), "done"
	}
}

func with(topics map[string]topic, name string, value *topic) map[string]topic {
	changed := map[string]topic{}
	for key, old := range topics {
		changed[key] = old
	}
	delete(changed, name)
	if value != nil {
		changed[name] = *value
	}
	return changed
}

var model = porcupine.Model{
	Init: func() interface{} { return map[string]topic{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		after, said := do(state.(map[string]topic), input.(action))
		heard := output.(*string)
		return heard == nil || *heard == said, after
	},
	Equal: func(one, other interface{}) bool { return fmt.Sprint(one) == fmt.Sprint(other) },
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var operations []operation
		if err := json.Unmarshal(lines.Bytes(), &operations); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		var history []porcupine.Operation
		for number, each := range operations {
			returned := int64(1) << 40 // never answered: it may come after all others
			if each.Returned != nil {
				returned = *each.Returned
			}
			history = append(history, porcupine.Operation{
				ClientId: number, Input: each.Action, Call: each.Called, Output: each.Answer, Return: returned,
			})
		}
		switch porcupine.CheckOperationsTimeout(model, history, time.Minute) {
		case porcupine.Ok:
			fmt.Println("linearizable")
		case porcupine.Illegal:
			fmt.Println("broken")
		default:
			fmt.Println("undecided")
		}
	}
}
