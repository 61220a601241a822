package probes

import (
	"regexp"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/knowledge"
)

// awsCall finds the call in an error of an AWS SDK that says no more than
// that access is denied, as S3 does.
// Sources: aws-sdk-go-v2 smithy OperationError, botocore ClientError.
var awsCall = regexp.MustCompile(`operation error ([A-Za-z0-9 ]+): (\w+),|when calling the (\w+) operation`)

// s3Actions are the operations of S3 whose action has another name.
// Source: Service Authorization Reference, Amazon S3.
var s3Actions = map[string]string{
	"ListObjects": "s3:ListBucket", "ListObjectsV2": "s3:ListBucket", "HeadBucket": "s3:ListBucket", "HeadObject": "s3:GetObject",
	"UploadPart": "s3:PutObject", "CreateMultipartUpload": "s3:PutObject", "CompleteMultipartUpload": "s3:PutObject", "CopyObject": "s3:PutObject", "DeleteObjects": "s3:DeleteObject",
}

// infer finds the action in a denial that doesn't name it: by the SDK's own
// words, or by what the component is known to log when it is refused.
func (d *Denial) infer(text string) bool {
	if !strings.Contains(text, "AccessDenied") && !strings.Contains(text, "StatusCode: 403") {
		return false
	}
	if m := awsCall.FindStringSubmatch(text); m != nil {
		operation := m[2] + m[3]
		service := m[1]
		if action := s3Actions[operation]; action != "" && (service == "S3" || service == "") {
			d.Action = action
		} else if service == "S3" || service == "" && (operation == "GetObject" || operation == "PutObject" || operation == "DeleteObject") {
			d.Action = "s3:" + operation
		}
	}
	if d.Action == "" && d.Component != nil {
		i := slices.IndexFunc(d.Component.Calls, func(c *knowledge.Call) bool {
			return slices.ContainsFunc(c.Seen, func(s string) bool { return strings.Contains(text, s) })
		})
		if i >= 0 {
			d.Action = d.Component.Calls[i].Actions[0]
		}
	}
	d.By = "policy"
	return d.Action != ""
}
