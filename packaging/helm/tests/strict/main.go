// Reads manifests from stdin and refuses every field that Kubernetes does not know, by the types of its own API.
package main

import (
	"fmt"
	"io"
	"os"
	"regexp"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		panic(err)
	}
	kinds := map[string]func() any{
		"DaemonSet": func() any { return &apps.DaemonSet{} },
		"ConfigMap": func() any { return &core.ConfigMap{} },
		"Namespace": func() any { return &core.Namespace{} },
	}
	read := 0
	for _, document := range regexp.MustCompile(`(?m)^---\s*$`).Split(string(text), -1) {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if head.Kind == "" {
			continue
		}
		made, known := kinds[head.Kind]
		if !known {
			fmt.Println("no type is known here for the kind", head.Kind)
			os.Exit(1)
		}
		if err := yaml.UnmarshalStrict([]byte(document), made()); err != nil {
			fmt.Println(head.Kind, err)
			os.Exit(1)
		}
		read++
	}
	fmt.Println(read, "objects are what Kubernetes knows")
	if read == 0 {
		os.Exit(1)
	}
}
