package probes

import (
	ec2 "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// What a VPC is made of.
var (
	NetworkInterfaces = described("ec2/describe-network-interfaces", "NetworkInterfaces", "network interfaces with their addresses and security groups",
		func(n *ec2.NetworkInterface) string { return deref(n.NetworkInterfaceId) })
	Subnets = described("ec2/describe-subnets", "Subnets", "subnets with their blocks, free addresses and tags",
		func(s *ec2.Subnet) string { return deref(s.SubnetId) })
	NetworkACLs = described("ec2/describe-network-acls", "NetworkAcls", "network ACLs with their entries and subnets",
		func(a *ec2.NetworkAcl) string { return deref(a.NetworkAclId) })
	RouteTables = described("ec2/describe-route-tables", "RouteTables", "route tables with their routes and subnets",
		func(t *ec2.RouteTable) string { return deref(t.RouteTableId) })
	VPCEndpoints = described("ec2/describe-vpc-endpoints", "VpcEndpoints", "VPC endpoints with their security groups, subnets and policies",
		func(v *ec2.VpcEndpoint) string { return deref(v.VpcEndpointId) })
)
