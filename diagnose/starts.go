package diagnose

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// startReasons are the reasons of events that say why the runtime could not
// create or start a container. Source: kubernetes pkg/kubelet/events/event.go.
var startReasons = []string{"Failed", "BackOff", "FailedToCreateContainer", "FailedToStartContainer"}

// notStarted takes the containers that the runtime could not create or start,
// also where the kubelet only shows its back-off.
func notStarted(c container) bool {
	if waitsFor("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")(c) {
		return true
	}
	exit := probes.LastExit(c.status)
	return exit != nil && (slices.Contains([]string{"StartError", "ContainerCannotRun", "ContainerCannotStart"}, exit.Reason) ||
		slices.Contains([]int32{126, 127, 128}, exit.ExitCode))
}

// starting are the symptoms that a container which can't start leads to.
var starting = []*Rule{podNotStarting, podCrashLooping, jobFailing}

// containerNotCreated: the runtime refuses to create or start a container.
var containerNotCreated = &Rule{
	ID:           "container-not-created",
	Explains:     starting,
	Intermediate: true,
	Needs:        []probes.Any{probes.Pods},
	Suspects:     perContainer(waitsFor("CreateContainerError", "RunContainerError")),
	Tests:        []Test{heard("did the runtime refuse to create or start container {container}?", startReasons, regexp.MustCompile(`(?s)(?:CreateContainerError|RunContainerError|Error): (?P<why>.+)`))},
}

// Source of the texts: kubernetes pkg/kubelet/kuberuntime/security_context.go.
var runsAsRoot = []*regexp.Regexp{
	regexp.MustCompile(`container has runAsNonRoot and (?P<why>image will run as root)`),
	regexp.MustCompile(`container has runAsNonRoot and (?P<why>image has non-numeric user \((?P<user>[^)]*)\), cannot verify user is non-root)`),
	regexp.MustCompile(`(?P<why>container's runAsUser breaks non-root policy)`),
}

// runAsNonRootConflict: the pod may not run as root, and its image would.
var runAsNonRootConflict = &Rule{
	ID:       "run-as-non-root-conflict",
	Explains: starting,
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(waitsFor("CreateContainerConfigError", "CreateContainerError")),
	Tests: []Test{{
		Asks:  "is container {container} bound to runAsNonRoot, with an image or a runAsUser that is root?",
		Needs: []probes.Any{probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			a := hears(facts, containers(s), startReasons, runsAsRoot...)
			if a.Truth != Yes {
				return a
			}
			c := containers(s)[0]
			user := "no runAsUser is set"
			if u := runAsUser(c); u != nil {
				user = fmt.Sprintf("runAsUser is %d", *u)
			}
			a.Evidence = append(a.Evidence, SawObject("pods", c.pod.Namespace, c.pod.Name, "securityContext of container %s: runAsNonRoot is true, %s", c.spec.Name, user))
			return a.With("user", user)
		},
	}},
}

func runAsUser(c container) *int64 {
	if sc := c.spec.SecurityContext; sc != nil && sc.RunAsUser != nil {
		return sc.RunAsUser
	}
	if sc := c.pod.Spec.SecurityContext; sc != nil {
		return sc.RunAsUser
	}
	return nil
}

// containerUserUnknown: the user by name is not in the image's passwd file.
// Source: opencontainers/runc libcontainer/user.
var containerUserUnknown = &Rule{
	ID:       "container-user-unknown",
	Explains: starting,
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(notStarted),
	Tests:    []Test{heard("does image {image} lack the user that the container runs as?", startReasons, regexp.MustCompile(`unable to find (?:user|group) (?P<user>[^:]+): no matching entries in (?:passwd|group) file`))},
}

// noCommand recognises what runtimes say of a program that they can't run.
// Sources: opencontainers/runc libcontainer, containers/crun, moby daemon/start.go.
var noCommand = []*regexp.Regexp{
	regexp.MustCompile(`exec: "(?P<command>[^"]+)": (?P<why>executable file not found in \$PATH|stat [^:]+: no such file or directory|permission denied|is a directory|no such file or directory)`),
	regexp.MustCompile("executable file `(?P<command>[^`]+)` (?P<why>not found(?: in \\$PATH)?)"),
	regexp.MustCompile("open executable: (?P<why>Permission denied|No such file or directory)"),
	regexp.MustCompile(`(?:starting container process caused|unable to start container process): exec (?P<command>/\S+): (?P<why>no such file or directory|permission denied)`),
}

// commandNotFound: the program that a container should run is not in its
// image, or may not be run.
var commandNotFound = &Rule{
	ID:       "command-not-found",
	Explains: starting,
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(notStarted),
	Tests: []Test{{
		Asks:  "could the runtime not run the container's program?",
		Needs: []probes.Any{probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			a := hears(facts, containers(s), startReasons, noCommand...)
			if a.Truth != Yes {
				return a
			}
			c := containers(s)[0]
			command := a.Vars["command"]
			where, says := "the image's entrypoint", fmt.Sprintf("container %s sets no command: the entrypoint of image %s runs", c.spec.Name, c.spec.Image)
			switch {
			case len(c.spec.Command) > 0:
				where, says = c.field("command"), fmt.Sprintf("container %s: command is %q", c.spec.Name, c.spec.Command)
			case len(c.spec.Args) > 0 && c.spec.Args[0] == command:
				where, says = c.field("args"), fmt.Sprintf("container %s: args are %q and there is no command", c.spec.Name, c.spec.Args)
			}
			a.Evidence = append(a.Evidence, SawObject("pods", c.pod.Namespace, c.pod.Name, "%s", says))
			a = a.With("where", where).With("command", commandOf(command, c))
			if v, m := mountOf(c, command); v != nil && strings.Contains(strings.ToLower(a.Vars["why"]), "permission") {
				a = a.With("hint", fmt.Sprintf(" The file comes from volume %s, mounted at %s: files of ConfigMaps and Secrets are not executable unless defaultMode says so (for instance 0755).", v.Name, m.MountPath))
			}
			return a
		},
	}},
}

func commandOf(command string, c container) string {
	if command == "" && len(c.spec.Command) > 0 {
		return c.spec.Command[0]
	}
	return command
}

// mountOf is the volume that holds a path of a container, with its mount; nil
// where the path is the image's own.
func mountOf(c container, file string) (*corev1.Volume, *corev1.VolumeMount) {
	var best *corev1.VolumeMount
	for i, m := range c.spec.VolumeMounts {
		at := path.Clean(m.MountPath)
		if (file == at || strings.HasPrefix(file, at+"/") || at == "/") && (best == nil || len(at) > len(path.Clean(best.MountPath))) {
			best = &c.spec.VolumeMounts[i]
		}
	}
	if best == nil {
		return nil, nil
	}
	for i, v := range c.pod.Spec.Volumes {
		if v.Name == best.Name {
			return &c.pod.Spec.Volumes[i], best
		}
	}
	return nil, nil
}

// workingDirMissing: the container's working directory can't be entered.
var workingDirMissing = &Rule{
	ID:       "working-dir-missing",
	Explains: starting,
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(notStarted),
	Tests:    []Test{heard("could the runtime not enter the container's working directory?", startReasons, regexp.MustCompile(`chdir to cwd \("(?P<dir>[^"]+)"\) set in config.json failed: (?P<why>[^:"]+)`), regexp.MustCompile(`mkdir (?P<dir>/\S+): (?P<why>not a directory|read-only file system)`))},
}

// mountConflict: a volume can't be mounted where the container wants it.
// Sources: opencontainers/runc libcontainer/rootfs_linux.go, kubernetes pkg/kubelet/kubelet_pods.go.
var mountConflict = &Rule{
	ID:       "mount-conflict",
	Explains: starting,
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(notStarted),
	Tests: []Test{{
		Asks:  "can a volume of container {container} not be mounted where it should be?",
		Needs: []probes.Any{probes.Events},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			a := hears(facts, containers(s), startReasons,
				regexp.MustCompile(`(?s)mount(?:ing)? .*? to rootfs at "(?P<at>[^"]+)".*?(?P<why>not a directory|is a directory|read-only file system|no such file or directory|permission denied)`),
				regexp.MustCompile(`(?P<why>failed to (?:prepare|create) subPath (?:for volumeMount|directory for volumeMount) "(?P<volume>[^"]+)")`),
				regexp.MustCompile(`(?P<why>Are you trying to mount a directory onto a file \(or vice-versa\)\?)`))
			if a.Truth != Yes {
				return a
			}
			c := containers(s)[0]
			for _, m := range c.spec.VolumeMounts {
				if at := a.Vars["at"]; at != "" && strings.HasSuffix(path.Clean(at), path.Clean(m.MountPath)) || m.Name == a.Vars["volume"] {
					says := fmt.Sprintf("volume %s is mounted at %s", m.Name, m.MountPath)
					if m.SubPath != "" {
						says += " with subPath " + m.SubPath
					}
					a.Evidence = append(a.Evidence, SawObject("pods", c.pod.Namespace, c.pod.Name, "container %s: %s", c.spec.Name, says))
					return a.With("mount", says)
				}
			}
			return a.With("mount", "a volume's mount")
		},
	}},
}

// postStartHookFailed: a container is killed because its postStart hook fails.
var postStartHookFailed = &Rule{
	ID:       "post-start-hook-failed",
	Explains: []*Rule{podNotStarting, podCrashLooping},
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(func(c container) bool { return c.spec.Lifecycle != nil && c.spec.Lifecycle.PostStart != nil }),
	Tests: []Test{heard("did the postStart hook of container {container} fail?", []string{"FailedPostStartHook"},
		regexp.MustCompile(`(?s)FailedPostStartHook: (?P<why>.+)`), regexp.MustCompile(`PostStartHookError: (?P<why>.+)`))},
}

// securityProfileMissing: the node has no such seccomp or AppArmor profile.
var securityProfileMissing = &Rule{
	ID:       "security-profile-missing",
	Explains: starting,
	Needs:    []probes.Any{probes.Pods},
	Suspects: perContainer(waitsFor("CreateContainerError", "RunContainerError", "CreateContainerConfigError", "Blocked", "AppArmor")),
	Tests: []Test{heard("does node {node} lack the security profile that container {container} asks for?", startReasons,
		regexp.MustCompile(`(?i)(?P<why>apparmor profile not found \S+|cannot (?:load|open) seccomp profile "[^"]+"|seccomp profile \S+ not found|unable to apply apparmor profile[^:]*)`))},
}

var startRules = []*Rule{
	containerNotCreated, runAsNonRootConflict, containerUserUnknown, commandNotFound, initWaitsForEver, workingDirMissing, mountConflict,
	postStartHookFailed, securityProfileMissing,
}
