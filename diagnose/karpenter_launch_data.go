package diagnose

import (
	"regexp"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// launchDataWrong: EC2 refuses what the class gives each instance: its disks
// or its user data.
var launchDataWrong = launchRule("nodeclass-launch-data-refused", asksLast+"its disks or its user data are not valid?", dataRefused, nil,
	func(_ *probes.Facts, c classCase, says []launchSaying) ([]Ref, map[string]string, []Evidence) {
		vars := map[string]string{"says": "EC2 refuses its disks or its user data"}
		if len(says) > 0 {
			vars["says"] = clip(refusalIn(says[0].text), 300)
		}
		if c.class == nil {
			return nil, vars, nil
		}
		var disks []string
		for _, m := range c.class.Spec.BlockDeviceMappings {
			size := "no size"
			if m.EBS != nil && m.EBS.VolumeSize != "" {
				size = m.EBS.VolumeSize
			}
			disks = append(disks, m.DeviceName+" "+size)
		}
		return nil, vars, []Evidence{c.saw("EC2NodeClass %s: spec.blockDeviceMappings: %s; spec.userData has %d bytes", c.name, orDefault(strings.Join(disks, ", "), "none"), len(c.class.Spec.UserData))}
	})

var refusalStart = regexp.MustCompile(`(?:InvalidBlockDeviceMapping|InvalidUserData|UserDataSizeLimitExceeded|InvalidParameterDependency|InvalidParameterCombination|UnknownVolumeType|InvalidVolume)`)

// refusalIn is what EC2 said, without Karpenter's words before it.
func refusalIn(text string) string {
	if at := refusalStart.FindStringIndex(text); at != nil {
		return text[at[0]:]
	}
	return text
}
